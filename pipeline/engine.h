#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <stop_token>
#include <utility>

#include "engine/awaitable.h"
#include "engine/stats.h"
#include "pipeline/engine_options.h"
#include "pipeline/plan.h"
#include "pipeline/records.h"
#include "pipeline/stages/lanes.h"

namespace millrace {

namespace detail {

struct engine_core;

// One run of a plan, independent of its item type. The owner's thread waits here for the spine (the
// run's I/O thread).
class run_base {
 public:
  // On the next of the core's I/O threads. Throws `failure` (usage) in a forked child, and on a
  // thread of the engine, where close() would wait for itself.
  explicit run_base(std::shared_ptr<engine_core> core);
  virtual ~run_base();
  run_base(const run_base&) = delete;
  run_base& operator=(const run_base&) = delete;

  run_stats stats();
  ledger counts();
  // Any thread, also while next() waits; needs no memory: ends the run where it waits, or where a
  // stage is asked for its next item. next() then throws `stopped`, also behind the data's end. In
  // a forked child it does nothing.
  void stop();
  // The owner's thread, once: stops the run when `token` is asked to.
  void stop_by(const std::stop_token& token);
  // The owner's thread, once: stops, waits for all coroutines, and destroys the streams on the
  // spine. Needs no memory.
  void close();
  bool is_of_this_process() const;

 protected:
  // Each throws `failure` (usage): in a forked child of the engine's process;
  void check_process() const;
  // on the run's I/O thread, where a function or stage of a plan may have an item in hand.
  void check_between_items() const;
  // Runs `f` on the spine and waits for it. What it throws is thrown here, as a `failure`.
  void on_spine(const std::function<void()>& f);
  // Spawns on the spine what `pull` returns, and waits until it has called pulled(), or throws as
  // that says.
  void wait_for(const std::function<awaitable<void>()>& pull);
  // The spine: whether next() is to fail without asking for an item.
  bool is_to_end() const;
  // The spine, once for each wait_for(): what came of it; null and an error, or `samples` that are
  // delivered. Either may be what a stage has thrown or given because of a stop.
  void pulled(const std::exception_ptr& thrown, const result<void>& given, std::uint64_t samples);

  // Throws `failure` (bad_state) where next() has been called.
  void check_not_begun() const;
  run_context& context() const;
  std::unique_ptr<run_context> make_context();
  void use(std::unique_ptr<run_context>& other);  // swaps them
  // Throws `failure` (bad_state) for a record in `saved_by` that is missing in `now`, the state
  // that the restored stages would save.
  static void check_all_claimed(const state& saved_by, const state& now);
  // The spine. Throws what a task of the run lacked memory for: it may have had an item in hand.
  void check_nothing_lost() const;
  virtual void destroy_streams() = 0;

 private:
  struct inside;
  std::unique_ptr<inside> inside_;
};

template <class T>
class run final : public run_base {
 public:
  // Makes the streams. Throws `failure` where the plan cannot be run.
  run(std::shared_ptr<engine_core> core, plan<T> what)
      : run_base(std::move(core)), what_(std::move(what)) {
    root_ = made(context());
  }
  state save() {
    check_between_items();
    state now;
    on_spine([&] {
      check_nothing_lost();
      root_->save(now);
    });
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
  std::optional<T> next() {
    wait_for([this] { return pull(this); });
    return std::exchange(item_, std::nullopt);
  }

 private:
  std::unique_ptr<stream<T>> made(run_context& context) const {
    check_not_empty(what_.make != nullptr);
    auto root = called_as("the plan", [&] { return what_.make(context); });
    if (!root) throw failure(error(errc::usage, "a plan that makes no stream"));
    if (auto divided = context.memory.divide(); !divided) throw failure(divided.error());
    return root;
  }

  static awaitable<void> pull(run* self) {
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
    if (!thrown && item) self->item_ = std::move(*item);
    if (self->item_) {
      samples = 1;
      if constexpr (requires { self->item_->size(); }) samples = self->item_->size();
    }
    self->pulled(thrown, given, samples);
  }
  void destroy_streams() override { root_.reset(); }

  plan<T> what_;
  std::unique_ptr<stream<T>> root_;
  std::optional<T> item_;  // the spine's until pulled(), then next()'s
};

}  // namespace detail

// A plan being run, seen from the thread that consumes it.
//
//   for (auto& batch : loader) ...     one epoch; again for the next one
//
// After restore() the first such loop gives what is left of the epoch: nothing, where the state was
// saved after its last item. Two empty ones in a row are the end of the data, unless a stage leaves
// out all of an epoch, or ranks are resumed that were in different epochs.
//
// One consumer thread; stats(), counts() and stop() from any, while the loader lives. What goes
// wrong is thrown as `failure`: also no_memory, where the host refuses memory; std::bad_alloc,
// where there is none to say so either. Items hold memory of the budget: let go of them, or the
// stages in front wait. The destructor stops the run and waits for it, on the consumer's thread. A
// loader may outlive its engine, and items both. Functions and stages of a plan run on the engine's
// threads, where next() of another loader of this engine throws `failure` (usage): it would wait
// for the thread that it is on. Give such a loader an engine of its own. In a child that the
// process has forked next() throws `failure` (usage), stop() does nothing, and the destructor
// leaves all to the parent; items may be let go of there, and their memory stays mapped.
template <class T>
class loader {
 public:
  explicit loader(std::unique_ptr<detail::run<T>> r) : run_(std::move(r)) {}
  loader(loader&&) noexcept = default;
  loader& operator=(loader&&) noexcept = delete;
  ~loader() {
    if (!run_) return;
    if (run_->is_of_this_process()) {
      run_->close();
    } else {
      static_cast<void>(run_.release());
    }
  }

  // The next item; nullopt at the end of an epoch. Called again, it begins the next epoch, or
  // returns nullopt again when there is none. Throws `failure`. Called again after a skippable
  // error, it continues after the item that failed; after any other error it throws the same again.
  std::optional<T> next() { return the_run().next(); }

  // The position after the last item that next() returned; where next() threw, the position before
  // the item that failed, so that a resumed run lacks no sample. Throws `failure` once a stage may
  // have lost the items that it held: no_memory where it ran out of memory, or what the allocator
  // of batches has thrown. Throws what a stage's own save() throws, with the stage's name. Between
  // two calls of next(): a function or a stage of a plan that asks on the run's I/O thread, with an
  // item in hand that no state would have, is refused (usage).
  state save() { return the_run().save(); }
  // Call before the first next(); a second call replaces the first. Throws `failure` (bad_state)
  // after next(), and when the state belongs to another plan; the loader is then as it was before.
  void restore(const state& from) { the_run().restore(from); }
  // Any thread, also while next() waits. Once stopped, next() throws `stopped`, whether or not
  // there are items left; what save() gives then is where another run goes on.
  run_stats stats() { return the_run().stats(); }
  ledger counts() { return the_run().counts(); }
  void stop() { the_run().stop(); }

  class iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = T;
    using difference_type = std::ptrdiff_t;
    using pointer = T*;
    using reference = T&;

    explicit iterator(loader* of) : of_(of) { ++*this; }
    iterator() = default;
    T& operator*() const { return *item_; }
    T* operator->() const { return &*item_; }
    iterator& operator++() {
      item_.reset();  // its memory first
      item_ = of_->next();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return !item_; }

   private:
    loader* of_ = nullptr;
    mutable std::optional<T> item_;  // whoever has an iterator may change what it is at
  };
  iterator begin() { return iterator(this); }
  std::default_sentinel_t end() { return {}; }

 private:
  detail::run<T>& the_run() const {
    if (!run_) throw failure(error(errc::usage, "this loader was moved: ask the new one"));
    return *run_;
  }

  std::unique_ptr<detail::run<T>> run_;
};

// The threads and the state that runs of plans share; loaders keep alive what they need of it. Any
// thread may call run() at any time, but for the engine's own.
class engine {
 public:
  explicit engine(const engine_options& options = {});
  ~engine() = default;
  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;

  // Starts a plan. Throws `failure`: no_memory when the budget is too small for it; an exception of
  // one of the program's own stages while it is made, with the stage's name. `stop`, which any
  // thread may ask for and which may outlive the loader, stops the run as loader::stop() does.
  template <class T>
  loader<T> run(const plan<T>& what, const std::stop_token& stop = {}) {
    auto made = std::make_unique<detail::run<T>>(core_, what);
    made->stop_by(stop);
    return loader<T>(std::move(made));
  }
  loader<sample> run(const lane_plan<sample>& what, const std::stop_token& stop = {}) {
    return run(interleaved(what), stop);
  }

  runtime& threads();
  const engine_options& options() const;
  // The sources of an I/O thread, for reading bytes without a plan.
  const source_registry& sources(int io_thread_index) const;

 private:
  std::shared_ptr<detail::engine_core> core_;
};

}  // namespace millrace
