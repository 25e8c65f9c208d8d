#pragma once

#include <chrono>
#include <cstddef>
#include <iterator>
#include <memory>
#include <optional>
#include <stop_token>
#include <type_traits>
#include <utility>
#include <vector>

#include "pipeline/plan/plan.h"
#include "pipeline/run/engine_options.h"
#include "pipeline/run/run.h"

namespace millrace {

// A plan being run, seen from the thread that consumes it. From engine::run().
//
//   for (auto& batch : loader) ...     one epoch; again for the next one
//
// After restore() the first such loop yields the rest of the epoch: nothing, if the state was saved
// after its last item. Two empty loops in a row are the end of the data, unless a stage leaves out
// all of an epoch, or the ranks that are resumed were in different epochs.
//
// One consumer thread: a call during another one throws `failure` (usage); stats(), counts() and
// stop() from any thread while the loader lives. Errors are thrown as `failure`, including
// no_memory if the host refuses memory; std::bad_alloc if there is not even memory to report that.
// Items hold memory of the budget: release them, or earlier stages wait.
//
// The destructor stops the run and waits for it, on the consumer's thread. On a thread of its
// engine, which would wait for itself, it logs a notice, and the run, stopped, ends when a loader
// of the engine is made or destroyed elsewhere, or the engine is; if the engine is gone already, it
// never ends. A loader may outlive its engine, and items may outlive both. Functions and stages of
// a plan run on the engine's threads, where next() and save() of a loader of the same engine, also
// of their own, throw `failure` (usage), because they would wait for the thread that they are on:
// give that loader an engine of its own. In a forked child next() throws `failure` (usage), stop()
// does nothing, and the destructor leaves everything to the parent; items may be released there,
// but their memory stays mapped.
template <class T>
class loader {
 public:
  explicit loader(std::unique_ptr<detail::run<T>> r) : run_(std::move(r)) {}
  loader(loader&&) noexcept = default;
  loader& operator=(loader&&) noexcept = delete;
  ~loader() {
    if (run_ && !run_->close_or_abandon()) static_cast<void>(run_.release());
  }

  // The next item; nullopt at the end of an epoch. The next call then begins the next epoch, or
  // returns nullopt again if there is none. Throws `failure`. After a skippable error the next call
  // continues after the item that failed; after any other error it throws the same again.
  std::optional<T> next() { return the_run().next(); }
  // Waits for the next item, end or error, for at most `timeout` (a year, if that is less). False:
  // none has come; the loader continues to make it, and next() gives it. With `max_items` as many
  // are asked for as next_ready() is to give. For a consumer that has something else to look at
  // meanwhile. Throws `failure` (usage) in a forked child, and on a thread of the engine.
  template <class Rep, class Period>
  bool wait_for(std::chrono::duration<Rep, Period> timeout, std::size_t max_items = 1) {
    using std::chrono::nanoseconds;
    constexpr nanoseconds longest = std::chrono::hours(24 * 365);
    const std::chrono::duration<double> seconds = timeout;  // of any range
    nanoseconds bounded = seconds.count() > 0 ? longest : nanoseconds(0);
    if (seconds.count() > 0 && seconds < longest) {
      bounded = std::chrono::duration_cast<nanoseconds>(timeout);
    }
    return the_run().wait_for(bounded, at_most(max_items));
  }
  // The next item and those after it that prefetch() has ready, at most `max_items` (1 to 1,024):
  // fewer changes of threads where items are small. None at the end of an epoch. Throws as next().
  std::vector<T> next_ready(std::size_t max_items) {
    return the_run().next_ready(at_most(max_items));
  }

  // The position after the last item that next() returned; if next() threw, the position before the
  // item that failed, so that a resumed run lacks no sample. Example: examples/resume.cc. Throws
  // `failure`:
  // - no_memory, or the error of the batches' allocator: a stage may have lost items because of it;
  // - what a stage's own save() throws, with the stage's name;
  // - usage: a function or stage of a plan calls it on a thread of the engine: it may have an item
  //   in hand that no state would have.
  // After a wait_for() the position is that before the item that was asked for. If that has not
  // come, save() waits for it, unless the plan ends in prefetch().
  state save() { return the_run().save(); }
  // Continues from a saved position. Call it before the first next(); a second call replaces the
  // first. Throws `failure` (bad_state) after next(), and for a state of another plan; the loader
  // is then as it was before. Example: examples/resume.cc.
  void restore(const state& from) { the_run().restore(from); }
  // Figures of the run so far: waits for the run's I/O thread to collect them. Any thread but
  // another I/O thread of the engine, where it throws `failure` (usage): two could wait for each
  // other.
  run_stats stats() { return the_run().stats(); }
  // Samples delivered, skipped, dropped and lost so far, up to the item given last if the plan ends
  // in prefetch(). Any thread, like stats().
  ledger counts() { return the_run().counts(); }
  // Ends the run. Any thread, also while next() waits, which may still give its item. Each call
  // after that throws `stopped`, whether or not there are items left, unless they do not say which
  // samples they were made of; save() gives the position from which another run continues.
  void stop() { the_run().stop(); }

  // Goes through the rest of the epoch. An input iterator: copies do not share a position.
  class iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = T;
    using difference_type = std::ptrdiff_t;
    using pointer = T*;
    using reference = T&;

    // Takes the first item. Throws what next() throws, as ++ does.
    explicit iterator(loader* of) : of_(of) { ++*this; }
    iterator() = default;
    // The item: yours to change or to move from. Valid until ++.
    T& operator*() const { return *item_; }
    // A member of the item.
    T* operator->() const { return &*item_; }
    // Destroys the item, then takes the next one.
    iterator& operator++() {
      item_.reset();  // its memory first
      item_ = of_->next();
      return *this;
    }
    // As the other ++.
    void operator++(int) { ++*this; }
    // Whether the epoch has ended.
    bool operator==(std::default_sentinel_t) const { return !item_; }

   private:
    loader* of_ = nullptr;
    mutable std::optional<T> item_;  // may be changed through a const iterator
  };
  iterator begin() { return iterator(this); }
  std::default_sentinel_t end() { return {}; }

 private:
  static constexpr std::size_t at_most(std::size_t items) {
    constexpr std::size_t most = 1024;
    return items < 1 ? 1 : items < most ? items : most;
  }
  detail::run<T>& the_run() const {
    if (!run_) throw failure(error(errc::usage, "this loader was moved: ask the new one"));
    return *run_;
  }

  std::unique_ptr<detail::run<T>> run_;
};

// The threads and the state that runs of plans share. Make one for the whole program; loaders keep
// alive what they need of it. Any thread may call run() at any time, except the engine's own. After
// a fork() make a new one. Examples: examples/epoch.cc, docs/embedding.md.
class engine {
 public:
  // Starts the threads. Throws `failure`: usage if an option is out of range; unsupported if the
  // kernel refuses io_backend::uring; what add_sources throws; the system's error if it refuses a
  // thread.
  explicit engine(const engine_options& options = {});
  ~engine();
  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;

  // Starts a plan. Throws `failure`: no_memory if the budget is too small for it, usage if it
  // cannot be run, and the error of one of the program's own stages while it is made, with the
  // stage's name. `stop`, which any thread may request and which may outlive the loader, stops the
  // run as loader::stop() does.
  template <class T>
  loader<T> run(const plan<T>& what, const std::stop_token& stop = {}) {
    auto made = std::make_unique<detail::run<T>>(core_, what);
    made->stop_by(stop);
    return loader<T>(std::move(made));
  }
  // Starts a plan of lanes, interleaved into one stream.
  loader<sample> run(const lane_plan<sample>& what, const std::stop_token& stop = {});
  // Does not compile: shards are read as samples.
  template <class T>
    requires(!std::is_same_v<T, sample>)
  loader<sample> run(const lane_plan<T>& /*what*/, const std::stop_token& stop = {}) {
    static_assert(std::is_same_v<T, sample>,
                  "a plan of shards gives no samples yet: append untar() | group_by_key(), or "
                  "read_samples() of a format");
    return run(lane_plan<sample>(), stop);
  }

  // The threads, for reading bytes without a plan.
  runtime& threads();
  // The options it was made with, memory_bytes filled in.
  const engine_options& options() const;
  // The sources of an I/O thread, in [0, io_threads), for reading bytes without a plan:
  // examples/read.cc. Throws std::out_of_range for another one.
  const source_registry& sources(int io_thread_index) const;

 private:
  std::shared_ptr<detail::engine_core> core_;
};

}  // namespace millrace
