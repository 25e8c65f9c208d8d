#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <utility>
#include <vector>

#include "engine/coroutines/awaitable.h"
#include "pipeline/plan/plan.h"
#include "pipeline/run/run_stats.h"
#include "pipeline/stages/lanes.h"
#include "pipeline/state/records.h"

// Parts of a loader (pipeline/run/engine.h).
namespace millrace {

namespace detail {

struct engine_core;

// A run of a plan, independent of its item type. The owner's thread waits here for the spine: the
// I/O thread, one of the engine's, that runs the stages.
class run_base {
 public:
  // The spine is the next of the engine's I/O threads. Throws `failure` (usage) in a forked child,
  // and on a thread of the engine, where close() would wait for itself.
  explicit run_base(std::shared_ptr<engine_core> core);
  virtual ~run_base();
  run_base(const run_base&) = delete;
  run_base& operator=(const run_base&) = delete;

  run_stats stats();
  ledger counts();
  // Any thread, also while next() waits; needs no memory. Ends the run where it waits, or where a
  // stage is asked for its next item. next() then throws `stopped`, even after the data's end. In a
  // forked child it does nothing.
  void stop();
  // The owner's thread, once: stops the run when `token` is asked to.
  void stop_by(const std::stop_token& token);
  // The owner's thread, once: stops, waits for all coroutines, and destroys the streams on the
  // spine. Needs no memory.
  void close();
  bool is_of_this_process() const;

 protected:
  // Throws `failure` (usage) in a forked child of the engine's process.
  void check_process() const;
  // Throws `failure` (usage) on the run's I/O thread, where a function or stage of a plan may have
  // an item in hand.
  void check_between_items() const;
  // Runs `f` on the spine and waits for it. What it throws is thrown here, as a `failure`.
  void on_spine(const std::function<void()>& f);
  // The owner's thread: has the spine run pull(), unless that was asked for already.
  void ask();
  // Whether the answer to ask() has not been taken.
  bool is_asked() const;
  // After ask(): waits for the answer, at most so long.
  bool is_answered_within(std::chrono::nanoseconds most);
  // After ask(): waits for the answer.
  void wait_for_answer();
  // Whether the answer, which has come, is an error.
  bool has_failed() const;
  // After ask(): waits for the answer, and throws the error that it may be.
  void take_answer();
  // Spine: whether next() is to fail without asking for an item.
  bool is_to_end() const;
  // Spine, once for each pull(): the outcome, which is an exception, an error, or `samples` that
  // are delivered. What a stage has thrown or returned may be due to a stop.
  void pulled(const std::exception_ptr& thrown, const result<void>& given, std::uint64_t samples);

  // Throws `failure` (bad_state) after next() has been called.
  void check_not_begun() const;
  run_context& context() const;
  std::unique_ptr<run_context> make_context();
  void use(std::unique_ptr<run_context>& other);  // swaps them
  // Throws `failure` (bad_state) for a record in `saved_by` that is missing in `now`, the state
  // that the restored stages would save.
  static void check_all_claimed(const state& saved_by, const state& now);
  // Spine. Throws the lack of memory that ended a task of the run, which may have had an item in
  // hand.
  void check_nothing_lost() const;
  virtual void destroy_streams() = 0;
  // Spine: takes the next item, and calls pulled().
  virtual awaitable<void> pull() = 0;

 private:
  struct inside;
  std::unique_ptr<inside> inside_;
};

template <class T>
class run final : public run_base {
 public:
  // Makes the streams. Throws `failure` if the plan cannot be run.
  run(std::shared_ptr<engine_core> core, plan<T> what)
      : run_base(std::move(core)), what_(std::move(what)) {
    root_ = made(context());
  }
  state save() {
    check_between_items();
    if (is_asked()) {
      std::shared_ptr<const state> kept;
      on_spine([&] {
        check_nothing_lost();
        kept = before_next_;
      });
      if (kept) return *kept;
      wait_for_answer();
    }
    state now;
    on_spine([&] {
      check_nothing_lost();
      root_->save(now);
    });
    if (is_asked() && !has_failed()) hold_next(now);
    return now;
  }
  void restore(const state& from) {
    check_process();
    check_not_begun();
    check_numbers(from);
    // Restores fresh streams, which replace the others once that has succeeded.
    auto context = make_context();
    auto root = made(*context);
    on_spine([&] {
      std::unique_ptr<stream<T>> fresh = std::move(root);  // destroyed here, like those replaced
      fresh->restore(from);
      state now;
      fresh->save(now);
      check_all_claimed(from, now);
      root_.swap(fresh);
      use(context);
    });
  }
  // After an ask that is not answered, as many as that was for.
  bool wait_for(std::chrono::nanoseconds most, std::size_t items) {
    ask_for(items);
    return is_answered_within(most);
  }
  std::vector<T> next_ready(std::size_t most) {
    ask_for(most);
    take_answer();
    return std::exchange(items_, {});
  }
  std::optional<T> next() {
    ask_for(1);
    take_answer();
    std::optional<T> out;
    if (!items_.empty()) out = std::move(items_.front());
    items_.clear();
    return out;
  }

 private:
  void ask_for(std::size_t items) {
    if (!is_asked()) items_asked_ = items > 0 ? items : 1;
    ask();
  }

  // Adds what was asked for and not taken, items or the end: it is still to come.
  void hold_next(state& to) const {
    if (items_.empty()) {
      to.append(end_owed_record, state::record{1});
    } else if constexpr (tells_origins<T>()) {
      std::vector<origin> of;
      for (const T& item : items_) append_origins(of, item);
      to.hold(pending_record, of);
    } else {
      throw failure(error(errc::usage,
                          "save() after wait_for(), of items that do not say which samples they "
                          "were made of")
                        .hint("take the item by next() first"));
    }
  }

  std::unique_ptr<stream<T>> made(run_context& context) const {
    check_not_empty(what_.make != nullptr);
    auto root = called_as("the plan", [&] { return what_.make(context); });
    if (!root) throw failure(error(errc::usage, "a plan that makes no stream"));
    if (auto divided = context.memory.divide(); !divided) throw failure(divided.error());
    return root;
  }

  awaitable<void> pull() override {
    items_.reserve(items_asked_);
    before_next_ = root_->kept_state();
    return pull_by(this);
  }

  static awaitable<void> pull_by(run* self) {
    typename stream<T>::outcome item = std::optional<T>();
    std::exception_ptr thrown;
    try {
      if (self->is_to_end()) {
        item = run_stopped();
      } else {
        item = co_await self->root_->next();
      }
    } catch (...) {
      thrown = std::current_exception();
    }
    result<void> given;
    std::uint64_t samples = 0;
    if (!thrown && !item) given = item.error();
    while (!thrown && item && *item) {
      samples += samples_of(**item);
      self->items_.push_back(std::move(**item));
      if (self->items_.size() == self->items_asked_ || !self->root_->has_item_ready()) break;
      // It is an item, unless the run has been stopped, which the next call says.
      item = co_await self->root_->next();
    }
    self->pulled(thrown, given, samples);
  }
  static std::size_t samples_of(const T& item) {
    if constexpr (requires { item.size(); }) return item.size();
    return 1;
  }
  void destroy_streams() override { root_.reset(); }

  plan<T> what_;
  std::unique_ptr<stream<T>> root_;
  std::shared_ptr<const state> before_next_;  // spine: what is asked for; null: not kept
  std::size_t items_asked_ = 1;
  std::vector<T> items_;  // belongs to the spine until pulled(), then to next()
};

}  // namespace detail

}  // namespace millrace
