#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "engine/base/check_option.h"
#include "engine/coroutines/condition.h"
#include "engine/threads/offload.h"
#include "pipeline/plan/ordered_window.h"
#include "pipeline/plan/plan.h"

namespace millrace {

namespace detail {

// Converts the return value of a user's function: an item, an item or nothing (which leaves it
// out), or an error.
template <class R>
struct mapped {
  static_assert(!std::is_void_v<R> && !std::is_same_v<R, error>,
                "the function of map() returns an item, an optional one, or a result of either: "
                "not void, and no bare error");
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

// Whether items of this type are of one sample, and say of which.
template <class T>
concept of_one_sample = requires(const T& item) {
  { item.where } -> std::same_as<const origin&>;
};

// Calls a function of the program. An exception fails the item like a returned error; both name the
// item. So does a result that says it is of another sample: a resumed run would read that instead.
template <class Out, class F, class In>
result<std::optional<Out>> called(const F& f, In&& item) {
  item_name name;
  name.note(item);
  try {
    origin where;
    if constexpr (of_one_sample<std::remove_cvref_t<In>>) where = item.where;
    auto out = mapped<std::invoke_result_t<const F&, In>>::of(f(std::forward<In>(item)));
    if (!out) return name.named(out.error());
    if constexpr (of_one_sample<std::remove_cvref_t<In>> && of_one_sample<Out>) {
      if (*out && (*out)->where != where) return name.named(has_other_origin());
    }
    return out;
  } catch (...) {
    return name.named(error_of(std::current_exception(), "the function of map()"));
  }
}

}  // namespace detail

// Options of map().
struct map_options {
  // Threads of the CPU pool that call the function at once, at most 65,536: it must be thread-safe.
  // 0: the I/O thread calls it, which suits work of microseconds.
  int threads = 0;
  bool ordered = true;  // false: results come as they are ready
};

namespace detail {

template <class In, class Out>
struct map_job : window_job<In> {
  std::optional<Out> out;  // nullopt: the item is left out
};

template <class In, class Out>
class map_window final : public ordered_window<In, map_job<In, Out>> {
 public:
  using function = std::function<result<std::optional<Out>>(In)>;
  using job = map_job<In, Out>;

  map_window(run_context& r, std::unique_ptr<stream<In>> items, function what, int threads)
      : ordered_window<In, job>(r, "map", std::move(items), static_cast<std::size_t>(threads) * 2),
        what_(std::move(what)),
        threads_(threads),
        may_run_(r.io) {}

 private:
  awaitable<result<void>> start(std::shared_ptr<job> j) override {
    auto self = std::static_pointer_cast<map_window>(this->shared_from_this());
    this->run.tasks.spawn(run_job(std::move(self), j));
    j->under_way = true;
    co_return result<void>();
  }

  static awaitable<void> run_job(std::shared_ptr<map_window> w, std::shared_ptr<job> j) {
    while (w->running_ == w->threads_) co_await w->may_run_.wait();
    ++w->running_;
    const auto work = [w, j] { return w->what_(std::move(*j->item)); };
    auto made = co_await offload(w->run.io, w->run.threads.cpu(), work);
    j->item.reset();
    --w->running_;
    w->may_run_.notify_one();
    if (made) {
      j->out = std::move(*made);
    } else {
      j->failed = made.error();
    }
    j->finished = true;
    w->notify_finished();
  }

  function what_;
  int threads_;
  int running_ = 0;  // calls of the function, up to `threads_`
  condition may_run_;
};

template <class In, class Out>
class map_stream final : public windowed_stream<Out, map_window<In, Out>> {
 public:
  using outcome = typename stream<Out>::outcome;

  map_stream(std::shared_ptr<map_window<In, Out>> window, bool ordered)
      : windowed_stream<Out, map_window<In, Out>>(std::move(window)), ordered_(ordered) {}

  awaitable<outcome> next() override {
    for (;;) {
      auto taken = co_await this->window().take(!ordered_);
      if (!taken) co_return taken.error();
      map_job<In, Out>& job = **taken;
      if (job.failed) co_return *job.failed;
      if (job.ends_epoch || job.out) co_return std::move(job.out);
    }
  }

 private:
  bool ordered_;
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

// A stage that calls `what` with each item. An item must know where it comes from (a member
// `where`, `origins` or `items`): what is under way when a state is saved is read again. One with a
// `where` other than that of the item that it was made of fails (usage). A returned
// value is passed on, an empty optional leaves the item out, and a result's error fails it
// (skippable, if the error is). An exception fails it as well: a `failure` with its error, any
// other with `uncaught`, which is not skippable. The outcome does not depend on the number of
// threads. Examples: examples/two_modalities.cc, docs/embedding.md.
template <class F>
struct map {
  F what;               // callable with an item, as const
  map_options options;  // where it is called
  // Throws `failure` (usage) for options out of range.
  explicit map(F f, const map_options& o = {}) : what(std::move(f)), options(o) {
    constexpr int most = 1 << 16;
    check_option("map_options.threads", o.threads, 0, most);
  }

  template <class In>
  auto for_items() const {
    static_assert(std::is_invocable_v<const F&, In>,
                  "the function of map() is called, as const, with an item of the stage before it: "
                  "take it by value or by const reference, and do not make a lambda mutable");
    using returned = std::invoke_result_t<const F&, In>;
    using out = typename detail::mapped<returned>::type;
    using function = std::function<result<std::optional<out>>(In)>;
    const function call = [f = what](In&& item) { return detail::called<out>(f, std::move(item)); };
    return stage<In, out>{
        .name = "map",
        .wrap = [call, o = options](run_context& run, std::unique_ptr<stream<In>> items)
            -> std::unique_ptr<stream<out>> {
          const function counted = [call, memory = run.memory_for_decoding()](In&& item) {
            const work_memory_scope in(*memory);
            return call(std::move(item));
          };
          if (o.threads == 0) {
            return std::make_unique<detail::direct_map<In, out>>(std::move(items), counted);
          }
          auto window = std::make_shared<detail::map_window<In, out>>(run, std::move(items),
                                                                      counted, o.threads);
          return std::make_unique<detail::map_stream<In, out>>(std::move(window), o.ordered);
        },
        .takes_ahead = options.threads > 0};
  }
};

}  // namespace millrace
