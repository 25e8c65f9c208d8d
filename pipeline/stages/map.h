#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/check_option.h"
#include "engine/condition.h"
#include "engine/offload.h"
#include "pipeline/plan.h"
#include "pipeline/records.h"

namespace millrace {

// Stages for items of any kind. Each saves and restores: the items that it holds go back to their
// lane as origins, so they must know where they come from (a member `where`).

namespace detail {

// Converts the return value of a user's function: an item, an item or nothing (the sample is left
// out), or an error.
template <class R>
struct mapped {
  using type = R;
  static result<std::optional<R>> of(R&& r) { return std::optional<R>(std::forward<R>(r)); }
};
template <class R>
struct mapped<std::optional<R>> {
  using type = R;
  static result<std::optional<R>> of(std::optional<R>&& r) { return std::move(r); }
};
template <class R>
struct mapped<result<R>> {
  using type = R;
  static result<std::optional<R>> of(result<R>&& r) {
    if (!r) return r.error();
    return std::optional<R>(std::move(*r));
  }
};
template <class R>
struct mapped<result<std::optional<R>>> {
  using type = R;
  static result<std::optional<R>> of(result<std::optional<R>>&& r) { return std::move(r); }
};

// Calls a function of the program. An exception fails the item like a returned error; both name the
// item.
template <class Out, class F, class In>
result<std::optional<Out>> called(const F& f, In&& item) {
  item_name name;
  name.note(item);
  try {
    auto out = mapped<std::invoke_result_t<const F&, In>>::of(f(std::forward<In>(item)));
    if (!out) return name.named(out.error());
    return out;
  } catch (...) {
    return name.named(error_of(std::current_exception(), "the function of map()"));
  }
}

}  // namespace detail

struct map_options {
  // Threads of the CPU pool that call the function, side by side; it must be safe to call so. 0:
  // the I/O thread calls it, which suits what takes microseconds.
  int threads = 0;
  bool ordered = true;  // false: results come as they are ready
};

namespace detail {

template <class In, class Out>
class map_stream final : public stream<Out> {
  using function = std::function<result<std::optional<Out>>(In)>;
  struct job {
    std::vector<origin> origins = {};
    std::optional<result<std::optional<Out>>> done = {};
    bool ends_epoch = false;
    bool failed_in_front = false;
  };
  // What the stream shares with the coroutines that it has spawned.
  struct shared {
    shared(run_context& r, function f, const map_options& o)
        : run(r), what(std::move(f)), options(o), changed(r.io), may_run(r.io) {}
    run_context& run;
    function what;
    map_options options;
    std::deque<std::shared_ptr<job>> jobs;  // in the order of their items
    bool ended = false;
    std::optional<error> broken;  // why, where the item in hand may be in no state
    bool epoch_held = false;
    bool error_held = false;  // of a stage in front, which stays where it is until it is told
    condition changed;
    int running = 0;  // calls of the function, up to options.threads
    condition may_run;
  };

 public:
  using outcome = typename stream<Out>::outcome;

  map_stream(run_context& run, std::unique_ptr<stream<In>> items, function what,
             const map_options& options)
      : items_(std::move(items)),
        shared_(std::make_shared<shared>(run, std::move(what), options)) {}

  awaitable<outcome> next() override {
    shared& s = *shared_;
    if (!started_) {
      started_ = true;
      pump_ = s.run.tasks.spawn_stoppable(pump(shared_, items_.get()));
    }
    map_stream::leave_failed();
    for (;;) {
      auto ready = s.jobs.begin();
      while (ready != s.jobs.end() && !(*ready)->done) ++ready;
      // The end of an epoch comes after all items before it.
      const bool is_turn = ready != s.jobs.end() && (ready == s.jobs.begin() ||
                                                     (!s.options.ordered && !(*ready)->ends_epoch));
      if (!is_turn) {
        co_await s.changed.wait();
        continue;
      }
      const std::shared_ptr<job> j(std::move(*ready));
      s.jobs.erase(ready);
      if (j->ends_epoch) s.epoch_held = false;
      s.changed.notify_all();
      if (!*j->done) {
        failed_ = j->origins;
        error_told_ = j->failed_in_front;
        co_return j->done->error();
      }
      if (j->ends_epoch || **j->done) co_return std::move(**j->done);
    }
  }

  void leave_failed() override {
    failed_.clear();
    if (!std::exchange(error_told_, false)) return;
    items_->leave_failed();
    shared_->error_held = false;
    shared_->changed.notify_all();
  }

  void save(state& to) const override {
    if (shared_->broken) throw failure(*shared_->broken);
    items_->save(to);
    to.hold(pending_record, failed_);
    for (const auto& j : shared_->jobs) to.hold(pending_record, j->origins);
    if (shared_->epoch_held) to.append(end_owed_record, state::record{1});
  }
  void restore(const state& from) override { items_->restore(from); }

 private:
  static awaitable<void> run_job(std::shared_ptr<shared> s, std::shared_ptr<job> j,
                                 std::shared_ptr<In> item) {
    while (s->running == s->options.threads) co_await s->may_run.wait();
    ++s->running;
    const auto work = [s, item] { return s->what(std::move(*item)); };
    j->done = co_await offload(s->run.io, s->run.threads.cpu(), work);
    --s->running;
    s->may_run.notify_one();
    s->changed.notify_all();
  }

  static awaitable<void> pump(std::shared_ptr<shared> s, stream<In>* items) {
    auto failed = co_await failure_of(take(s, items), "map");
    if (!failed) co_return;
    s->ended = true;
    s->broken = failed->skippable(false);
    s->jobs.push_back(std::make_shared<job>(job{.done = *s->broken}));
    s->changed.notify_all();
  }

  static awaitable<void> take(std::shared_ptr<shared> s, stream<In>* items) {
    const auto window = static_cast<std::size_t>(s->options.threads) * 2;
    while (!s->ended) {
      while (s->jobs.size() >= window || s->epoch_held || s->error_held) co_await s->changed.wait();
      auto next = co_await items->next();
      auto j = std::make_shared<job>();
      if (!next) {
        s->ended = !next.error().is_skippable();
        j->failed_in_front = s->error_held = true;
        j->done = next.error();
      } else if (!*next) {
        j->ends_epoch = s->epoch_held = true;
        j->done = result<std::optional<Out>>(std::optional<Out>());
      } else {
        append_origins(j->origins, **next);
      }
      s->jobs.push_back(j);
      if (!j->done) {
        try {
          s->run.tasks.spawn(run_job(s, j, std::make_shared<In>(std::move(**next))));
          continue;
        } catch (...) {
          j->done = error_of(std::current_exception(), "map");
          s->ended = true;
        }
      }
      s->changed.notify_all();
    }
  }

  std::unique_ptr<stream<In>> items_;
  std::shared_ptr<shared> shared_;
  std::vector<origin> failed_;  // of the job whose error was given, until the next call
  bool error_told_ = false;     // one of a stage in front has been given, in the last call
  scope::task pump_;
  bool started_ = false;
};

template <class In, class Out>
class direct_map final : public stream<Out> {
 public:
  using outcome = typename stream<Out>::outcome;
  using function = std::function<result<std::optional<Out>>(In)>;

  direct_map(std::unique_ptr<stream<In>> items, function what)
      : items_(std::move(items)), what_(std::move(what)) {}
  awaitable<outcome> next() override {
    for (;;) {
      auto item = co_await items_->next();
      if (!item) co_return item.error();
      if (!*item) co_return std::optional<Out>();
      auto made = what_(std::move(**item));
      if (!made || *made) co_return made;
    }
  }
  bool has_run_dry() const override { return items_->has_run_dry(); }
  void leave_failed() override { items_->leave_failed(); }
  void save(state& to) const override { items_->save(to); }
  void restore(const state& from) override { items_->restore(from); }

 private:
  std::unique_ptr<stream<In>> items_;
  function what_;
};

}  // namespace detail

// Calls `what` with each item. A returned value is passed on, an empty optional leaves the item
// out, and a result's error fails it (skippable, if the error is). An exception fails it as well: a
// `failure` with its error, anything else with `uncaught`, which is not skippable. The outcome does
// not depend on the number of threads. Throws `failure` (usage) for fewer than 0, or above 65,536.
template <class F>
struct map {
  F what;
  map_options options;
  explicit map(F f, const map_options& o = {}) : what(std::move(f)), options(o) {
    constexpr int most = 1 << 16;
    check_option("map_options.threads", o.threads, 0, most);
  }

  template <class In>
  auto for_items() const {
    using returned = std::invoke_result_t<const F&, In>;
    using out = typename detail::mapped<returned>::type;
    using function = std::function<result<std::optional<out>>(In)>;
    const function call = [f = what](In&& item) { return detail::called<out>(f, std::move(item)); };
    return stage<In, out>{
        "map",
        [call, o = options](run_context& run,
                            std::unique_ptr<stream<In>> items) -> std::unique_ptr<stream<out>> {
          const function counted = [call, memory = run.memory_for_decoding()](In&& item) {
            const work_memory_scope in(*memory);
            return call(std::move(item));
          };
          if (o.threads == 0) {
            return std::make_unique<detail::direct_map<In, out>>(std::move(items), counted);
          }
          return std::make_unique<detail::map_stream<In, out>>(run, std::move(items), counted, o);
        },
        nullptr,
        false,
        false,
        options.threads > 0};
  }
};

}  // namespace millrace
