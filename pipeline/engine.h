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

// A run of a plan, independent of its item type. The owner's thread waits here for the spine (the
// run's I/O thread).
class run_base {
 public:
  // Runs on the next of the core's I/O threads. Throws `failure` (usage) in a forked child, and on
  // a thread of the engine, where close() would wait for itself.
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
  // Spawns on the spine what `pull` returns, and waits until it has called pulled(). Throws the
  // error given to that.
  void wait_for(const std::function<awaitable<void>()>& pull);
  // Spine: whether next() is to fail without asking for an item.
  bool is_to_end() const;
  // Spine, once for each wait_for(): the outcome, which is an exception, an error, or `samples`
  // that are delivered. What a stage has thrown or returned may be due to a stop.
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
  std::optional<T> item_;  // belongs to the spine until pulled(), then to next()
};

}  // namespace detail

// A plan being run, seen from the thread that consumes it. From engine::run().
//
//   for (auto& batch : loader) ...     one epoch; again for the next one
//
// After restore() the first such loop yields the rest of the epoch: nothing, if the state was saved
// after its last item. Two empty loops in a row are the end of the data, unless a stage leaves out
// all of an epoch, or the ranks that are resumed were in different epochs.
//
// One consumer thread; stats(), counts() and stop() from any thread while the loader lives. Errors
// are thrown as `failure`, including no_memory if the host refuses memory; std::bad_alloc if there
// is not even memory to report that. Items hold memory of the budget: release them, or earlier
// stages wait.
//
// The destructor stops the run and waits for it, on the consumer's thread. A loader may outlive its
// engine, and items may outlive both. Functions and stages of a plan run on the engine's threads,
// where next() of another loader of the same engine throws `failure` (usage), because it would wait
// for the thread that it is on: give that loader an engine of its own. In a forked child next()
// throws `failure` (usage), stop() does nothing, and the destructor leaves everything to the
// parent; items may be released there, but their memory stays mapped.
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

  // The next item; nullopt at the end of an epoch. The next call then begins the next epoch, or
  // returns nullopt again if there is none. Throws `failure`. After a skippable error the next call
  // continues after the item that failed; after any other error it throws the same again.
  std::optional<T> next() { return the_run().next(); }

  // The position after the last item that next() returned; if next() threw, the position before the
  // item that failed, so that a resumed run lacks no sample. Throws `failure`: no_memory or the
  // error of the batches' allocator, if a stage may have lost items that it held because of it;
  // what a stage's own save() throws, with the stage's name; usage if a function or a stage of a
  // plan calls it on the run's I/O thread, with an item in hand that no state would have. Example:
  // examples/resume.cc.
  state save() { return the_run().save(); }
  // Continues from a saved position. Call it before the first next(); a second call replaces the
  // first. Throws `failure` (bad_state) after next(), and for a state of another plan; the loader
  // is then as it was before. Example: examples/resume.cc.
  void restore(const state& from) { the_run().restore(from); }
  // Figures of the run so far: waits for the run's I/O thread to collect them. Any thread.
  run_stats stats() { return the_run().stats(); }
  // Samples delivered, skipped, dropped and lost so far. Any thread, like stats().
  ledger counts() { return the_run().counts(); }
  // Ends the run. Any thread, also while next() waits. next() then throws `stopped`, whether or not
  // there are items left; save() gives the position from which another run continues.
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
  // Starts the threads. Throws `failure`: usage for an option out of range, unsupported for
  // io_backend::uring if the kernel refuses it, the error of add_sources, and of a host that
  // refuses a thread.
  explicit engine(const engine_options& options = {});
  ~engine() = default;
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
  loader<sample> run(const lane_plan<sample>& what, const std::stop_token& stop = {}) {
    return run(interleaved(what), stop);
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
