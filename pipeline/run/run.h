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
  // The owner's thread, once: closes the run, so that it can be destroyed. Returns false in a
  // forked child, which leaves the run alone, and on a thread of the engine, which would wait for
  // itself: there the run is stopped and belongs to end_abandoned(), and a notice says so.
  bool close_or_abandon() noexcept;
  // Closes and destroys the runs that close_or_abandon() kept, except those with a call under way;
  // none, on a thread of the engine.
  static void end_abandoned(engine_core& core) noexcept;

 protected:
  // A call by the owner. Throws `failure` (usage) if another one is under way: on another thread,
  // or one that waits for the function of the plan that makes this call.
  class one_call {
   public:
    explicit one_call(run_base& of);
    ~one_call();
    one_call(const one_call&) = delete;
    one_call& operator=(const one_call&) = delete;

   private:
    run_base& of_;
  };
  // Throws `failure` (usage) in a forked child of the engine's process.
  void check_process() const;
  // Throws `failure` (usage) on a thread of the engine, where a function or stage of a plan may
  // have an item in hand.
  void check_between_items() const;
  // Runs `f` on the spine and waits for it. What it throws is thrown here, as a `failure`.
  void on_spine(const std::function<void()>& f);
  // The end of a pull(): an end of epoch, an error, or neither after an item.
  struct outcome {
    std::optional<error> failed = {};
    bool ended = false;
  };
  // The owner's thread: has the spine run pull(), unless that was asked for and not taken.
  void ask();
  bool is_asked() const;
  // After ask(): waits for the end of pull() for at most that long. False: it has not ended.
  bool is_answered_within(std::chrono::nanoseconds timeout);
  // After ask(): waits for the end of pull(). Another one may be asked for then.
  outcome take_answer();
  // The owner's thread: samples that next() gives.
  void add_delivered(std::size_t samples);
  // Sets what counts() returns from now on but for `delivered`; null: the present counts. The
  // owner's thread.
  void show_counts(std::shared_ptr<const ledger> kept);
  // Whether stop() was called. Any thread.
  bool is_stop_asked() const;
  // Spine: whether pull() is to fail without asking for an item.
  bool is_to_end() const;
  // Spine, at the end of each pull(): how it ended, by an exception, an error, the end of an epoch
  // or an item. What a stage has thrown or returned may be due to a stop.
  void pulled(const std::exception_ptr& thrown, const result<void>& given, bool ended) noexcept;

  // Throws `failure` (bad_state) after ask().
  void check_not_begun() const;
  run_context& context() const;
  std::unique_ptr<run_context> make_context();
  void use(std::unique_ptr<run_context>& other);  // swaps them
  // Spine. Throws the lack of memory that ended a task of the run, which may have had an item in
  // hand.
  void check_nothing_lost() const;
  virtual void destroy_streams() = 0;
  // Spine: takes the next items, and calls pulled() in any case.
  virtual awaitable<void> pull() = 0;

 private:
  struct request;
  struct inside;
  std::unique_ptr<inside> inside_;
};

template <class T>
class run final : public run_base {
 public:
  // Makes the streams. Throws `failure` if the plan cannot be run.
  run(std::shared_ptr<engine_core> core, plan<T> what);
  ~run() override;
  state save();
  void restore(const state& from);
  bool wait_for(std::chrono::nanoseconds timeout, std::size_t max_items);
  std::optional<T> next();
  std::vector<T> next_ready(std::size_t max_items);

 private:
  // Whether something is left of the last answer: items, an end or a failure.
  bool has_answer() const { return given_ < taken_.size() || how_.ended || how_.failed; }
  void ask_for(std::size_t items) {
    if (!is_asked()) items_asked_ = items > 0 ? items : 1;
    ask();
  }
  // Waits for what was asked for.
  void absorb() {
    how_ = take_answer();
    taken_.clear();
    taken_.swap(items_);
    calls_taken_.clear();
    calls_taken_.swap(calls_);
    given_ = 0;
  }
  void fetch(std::size_t items) {
    check_process();
    const bool was_asked = has_answer() || is_asked();
    if (!has_answer()) {
      ask_for(items);
      absorb();
    }
    // After a stop, nothing is given that a state lists as still to come.
    if constexpr (tells_origins<T>()) {
      const bool is_left = given_ < taken_.size() || how_.ended;
      if (is_left && was_asked && is_stop_asked()) throw failure(run_stopped());
    }
  }
  T give() {
    call& by = calls_taken_[given_];
    show_counts(std::move(by.counts));
    by.before.reset();
    T item = std::move(taken_[given_++]);
    add_delivered(samples_of(item));
    return item;
  }
  // Returns at the end of an epoch.
  void end() {
    const outcome how = std::exchange(how_, {});
    if (given_ < calls_taken_.size()) show_counts(calls_taken_[given_].counts);
    calls_taken_.clear();
    taken_.clear();
    given_ = 0;
    if (how.failed) throw failure(*how.failed);
  }

  // Adds what was taken from the stages and is still to be given: items, and the end of an epoch.
  void hold_what_is_left(state& to) const {
    if constexpr (tells_origins<T>()) {
      std::vector<origin> of;
      for (std::size_t i = given_; i < taken_.size(); ++i) append_origins(of, taken_[i]);
      to.hold(pending_record, of);
    } else if (given_ < taken_.size()) {
      throw failure(
          error(errc::usage,
                "save() before items are taken that wait_for() or next_ready() asked for, "
                "and that do not say which samples they were made of")
              .hint("take them first, or ask for one at a time"));
    }
    if (how_.ended) to.append(end_owed_record, state::record{1});
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
    calls_.reserve(items_asked_ + 1);
    before_next_ = nullptr;
    std::exception_ptr thrown = broken_;
    try {
      if (!thrown) before_next_ = root_->kept_state();
    } catch (...) {  // by save() of a stage
      thrown = std::current_exception();
      if (!error_of(thrown, "the plan").is_skippable()) broken_ = thrown;
    }
    return pull_by(this, thrown);
  }

  static awaitable<void> pull_by(run* self, std::exception_ptr thrown) {
    result<void> given;
    bool ended = false;
    try {
      if (self->is_to_end()) given = run_stopped();
      bool takes_more = !thrown && given.has_value();
      std::shared_ptr<const state> before = self->before_next_;
      while (takes_more) {
        auto item = co_await self->root_->next();
        self->calls_.push_back({std::move(before), self->root_->kept_counts()});
        ended = item && !*item;
        if (!item) given = item.error();
        takes_more = item && *item;
        if (!takes_more) break;
        self->items_.push_back(std::move(**item));  // there is room, so no item is lost
        takes_more = self->items_.size() < self->items_asked_ && self->root_->has_item_ready();
        if (takes_more) before = self->root_->kept_state();
      }
    } catch (...) {
      thrown = std::current_exception();
    }
    self->pulled(thrown, given, ended);
  }
  static std::size_t samples_of(const T& item) {
    if constexpr (requires { item.size(); }) return item.size();
    return 1;
  }
  void destroy_streams() override { root_.reset(); }

  // A call of the last stage's next(): the state before it, and the counts after it; null: not
  // kept.
  struct call {
    std::shared_ptr<const state> before;
    std::shared_ptr<const ledger> counts;
  };

  plan<T> what_;
  std::unique_ptr<stream<T>> root_;
  std::shared_ptr<const state> before_next_;  // spine: what is asked for; null: not kept
  std::exception_ptr broken_;                 // spine: what every pull() ends by
  // Of the spine from ask() to pulled(), and of the owner's thread otherwise.
  std::size_t items_asked_ = 1;
  std::vector<T> items_;
  std::vector<call> calls_;  // by which they came, and perhaps one that gave no item
  // Of the owner's thread: what the last pull() gave, of which `given_` items have been given.
  std::vector<T> taken_;
  std::vector<call> calls_taken_;
  std::size_t given_ = 0;
  outcome how_;
};

template <class T>
run<T>::run(std::shared_ptr<engine_core> core, plan<T> what)
    : run_base(std::move(core)), what_(std::move(what)) {
  root_ = made(context());
  show_counts(root_->kept_counts());
}

template <class T>
run<T>::~run() = default;

template <class T>
state run<T>::save() {
  check_between_items();
  const one_call alone(*this);
  if (is_asked()) {
    std::shared_ptr<const state> kept;
    on_spine([&] {
      check_nothing_lost();
      kept = before_next_;
    });
    if (kept) return *kept;
    absorb();
  }
  const auto kept = given_ < calls_taken_.size() ? calls_taken_[given_].before : nullptr;
  state now;
  on_spine([&] {
    check_nothing_lost();
    if (!kept) root_->save(now);
  });
  if (kept) return *kept;
  hold_what_is_left(now);
  return now;
}

template <class T>
void run<T>::restore(const state& from) {
  const one_call alone(*this);
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
  show_counts(root_->kept_counts());
}

template <class T>
bool run<T>::wait_for(std::chrono::nanoseconds timeout, std::size_t max_items) {
  const one_call alone(*this);
  if (!has_answer()) ask_for(max_items);
  return has_answer() || is_answered_within(timeout);
}

template <class T>
std::optional<T> run<T>::next() {
  const one_call alone(*this);
  fetch(1);
  if (given_ < taken_.size()) return give();
  end();
  return std::nullopt;
}

template <class T>
std::vector<T> run<T>::next_ready(std::size_t max_items) {
  const one_call alone(*this);
  fetch(max_items);
  std::vector<T> out;
  const std::size_t left = taken_.size() - given_;
  const std::size_t count = left < max_items ? left : max_items;
  out.reserve(count);
  while (out.size() < count) out.push_back(give());
  if (out.empty()) end();
  return out;
}

}  // namespace detail

}  // namespace millrace
