#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/offload.h"
#include "pipeline/lanes.h"
#include "pipeline/plan.h"

namespace millrace {

// Stages for items of any kind. Each saves and restores: what it holds goes back to its lane as
// origins, so items that a stage holds must tell where they come from (a member `where`).

namespace detail {

// The samples that an item was made of.
template <class T>
void append_origins(std::vector<origin>& to, const T& item) {
  if constexpr (requires { item.items; }) {
    for (const auto& i : item.items) append_origins(to, i);
  } else if constexpr (requires { item.origins; }) {
    to.insert(to.end(), item.origins.begin(), item.origins.end());
  } else {
    to.push_back(item.where);
  }
}

// What a user's function may return, as what a stream passes on: an item, an item or nothing (the
// sample is left out), or an error.
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

// A stream in front and nothing held: what most stages are.
template <class T>
class passing : public stream<T> {
 public:
  explicit passing(std::unique_ptr<stream<T>> items) : items_(std::move(items)) {}
  void save(state& to) const override { items_->save(to); }
  void restore(const state& from) override { items_->restore(from); }

 protected:
  std::unique_ptr<stream<T>> items_;
};

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
    std::vector<origin> origins;
    std::optional<result<std::optional<Out>>> done;
    bool ends_epoch = false;
  };
  // What the stream shares with the coroutines that it has spawned.
  struct shared {
    shared(run_context& r, function f, const map_options& o)
        : run(r), what(std::move(f)), options(o), changed(r.io.executor()) {}
    run_context& run;
    function what;
    map_options options;
    std::deque<std::shared_ptr<job>> jobs;  // in the order of their items
    bool ended = false;
    bool epoch_held = false;
    condition changed;
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
    for (;;) {
      const auto ready =
          std::ranges::find_if(s.jobs, [](const auto& j) { return j->done.has_value(); });
      // The end of an epoch stands behind all that is before it.
      const bool is_turn = ready != s.jobs.end() && (ready == s.jobs.begin() ||
                                                     (!s.options.ordered && !(*ready)->ends_epoch));
      if (!is_turn && s.jobs.empty() && broken_) co_return *broken_;
      if (!is_turn) {
        co_await s.changed.wait();
        continue;
      }
      const std::shared_ptr<job> j(std::move(*ready));
      s.jobs.erase(ready);
      if (j->ends_epoch) s.epoch_held = false;
      s.changed.notify_all();
      if (!*j->done) {
        if (!j->done->error().is_skippable()) broken_ = j->done->error();
        co_return j->done->error();
      }
      if (j->ends_epoch || **j->done) co_return std::move(**j->done);
    }
  }

  void save(state& to) const override {
    items_->save(to);
    for (const auto& j : shared_->jobs) to.hold(pending_record, j->origins);
    if (shared_->epoch_held) to.append(end_owed_record, state::record{1});
  }
  void restore(const state& from) override { items_->restore(from); }

 private:
  static awaitable<void> run_job(std::shared_ptr<shared> s, std::shared_ptr<job> j,
                                 std::shared_ptr<In> item) {
    const auto work = [s, item] { return s->what(std::move(*item)); };
    try {
      j->done = co_await offload(s->run.io, s->run.threads.cpu(), work);
    } catch (const failure& f) {
      j->done = f.why();
    } catch (const std::exception& e) {
      j->done = error(errc::internal, e.what()).skippable();
    }
    s->changed.notify_all();
  }

  static awaitable<void> pump(std::shared_ptr<shared> s, stream<In>* items) {
    const auto window = static_cast<std::size_t>(s->options.threads) * 2;
    while (!s->ended) {
      while (s->jobs.size() >= window || s->epoch_held) co_await s->changed.wait();
      auto next = co_await items->next();
      auto j = std::make_shared<job>();
      s->jobs.push_back(j);
      if (!next) {
        s->ended = !next.error().is_skippable();
        j->done = next.error();
      } else if (!*next) {
        j->ends_epoch = s->epoch_held = true;
        j->done = result<std::optional<Out>>(std::optional<Out>());
      } else {
        append_origins(j->origins, **next);
        s->run.tasks.spawn(run_job(s, j, std::make_shared<In>(std::move(**next))));
        continue;
      }
      s->changed.notify_all();
    }
  }

  std::unique_ptr<stream<In>> items_;
  std::shared_ptr<shared> shared_;
  std::optional<error> broken_;
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
      auto made = call(std::move(**item));
      if (!made || *made) co_return made;
    }
  }
  void save(state& to) const override { items_->save(to); }
  void restore(const state& from) override { items_->restore(from); }

 private:
  outcome call(In item) {
    try {
      return what_(std::move(item));
    } catch (const failure& f) {
      return f.why();
    }
  }

  std::unique_ptr<stream<In>> items_;
  function what_;
};

}  // namespace detail

// Calls `what` with each item: what it returns goes on, an empty optional leaves the item out, a
// result's error fails it (skippable, where it says so). Exceptions of `failure` are such errors.
template <class F>
struct map {
  F what;
  map_options options;
  explicit map(F f, const map_options& o = {}) : what(std::move(f)), options(o) {}

  template <class In>
  auto for_items() const {
    using returned = std::invoke_result_t<const F&, In>;
    using out = typename detail::mapped<returned>::type;
    using function = std::function<result<std::optional<out>>(In)>;
    const function call = [f = what](In&& item) {
      return detail::mapped<returned>::of(f(std::move(item)));
    };
    return stage<In, out>{
        "map",
        [call, o = options](run_context& run,
                            std::unique_ptr<stream<In>> items) -> std::unique_ptr<stream<out>> {
          if (o.threads == 0) {
            return std::make_unique<detail::direct_map<In, out>>(std::move(items), call);
          }
          return std::make_unique<detail::map_stream<In, out>>(run, std::move(items), call, o);
        }};
  }
};

}  // namespace millrace
