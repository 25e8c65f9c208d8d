#pragma once

#include <sys/types.h>

#include <atomic>
#include <boost/asio/post.hpp>
#include <exception>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <vector>

#include "engine/pool_controller.h"
#include "engine/posted_call.h"
#include "engine/runtime.h"
#include "engine/stats.h"
#include "engine/stepper.h"
#include "engine/stop.h"
#include "io/registry.h"
#include "pipeline/engine_options.h"
#include "pipeline/lanes.h"
#include "pipeline/plan.h"
#include "pipeline/records.h"

namespace millrace {

namespace detail {

// Gives the pool of an engine as many threads as its consumers need. Any thread.
class pool_governor {
 public:
  explicit pool_governor(worker_pool& pool);
  // A consumer has waited so long for an item.
  void consumer_waited(double seconds);

 private:
  worker_pool& pool_;
  std::mutex mutex_;
  // Guarded by mutex_.
  pool_controller controller_;
  steady_clock::time_point last_ = steady_clock::now();
  double busy_before_ = 0;
  double waited_ = 0;
};

// What the runs of an engine share: each keeps it alive, so a loader may outlive its engine. A
// forked child has none of the threads, so nothing can be waited for there.
struct engine_core {
  explicit engine_core(const engine_options& o);
  // Connections that are kept alive belong to their I/O thread's event loop: they go first.
  ~engine_core();
  engine_core(const engine_core&) = delete;
  engine_core& operator=(const engine_core&) = delete;

  // False in a forked child of the engine's process. Any thread.
  bool is_of_this_process() const;
  // The index of an I/O thread: runs take turns over them. Any thread.
  int next_io();

  engine_options options;
  std::unique_ptr<runtime> threads;
  std::unique_ptr<pool_governor> governor;  // null: the pool has a fixed number of threads
  std::vector<source_registry> registries;  // one for each I/O thread

 private:
  pid_t process_;
  std::atomic<unsigned> runs_ = 0;
};

// One run of a plan, independent of its item type. The owner's thread waits here for the spine (the
// run's I/O thread).
class run_base {
 public:
  // On the core's I/O thread of that index. Throws `failure` (usage) in a forked child, and on a
  // thread of the engine, where close() would wait for itself.
  run_base(std::shared_ptr<engine_core> core, int io_thread_index);
  virtual ~run_base() = default;
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
  // Runs `f` on the spine and waits for it. What it throws is thrown here, as a `failure`.
  void on_spine(const std::function<void()>& f);
  // Each throws `failure` (usage): in a forked child of the engine's process;
  void check_process() const;
  // there, and on a thread of the engine, which would wait for itself;
  void check_may_wait() const;
  // on the run's I/O thread, where a function or stage of a plan may have an item in hand.
  void check_between_items() const;
  bool is_of_this_process() const { return core_->is_of_this_process(); }

 protected:
  // How long a consumer waits before a notice tells it why.
  static constexpr std::chrono::seconds told_after{10};
  // Where stages have waited for memory since the last call, and `tells`: a notice, once.
  void tell_who_waits(bool tells) noexcept;  // next() waits meanwhile for what refers to its frame
  virtual void destroy_streams() = 0;
  std::unique_ptr<run_context> make_context();
  // Throws `failure` (bad_state) for a record in `saved_by` that is missing in `now`, the state
  // that the restored stages would save.
  static void check_all_claimed(const state& saved_by, const state& now);
  // The spine. Throws what a task of the run lacked memory for: it may have had an item in hand.
  void check_nothing_lost() const;
  // Spine. The reason why next() failed: the first exception of a stage or a task, rather than the
  // stop that it caused in the others.
  error why_ended(const std::exception_ptr& thrown) noexcept;
  error why_ended(error given) noexcept;

  std::shared_ptr<engine_core> core_;  // outlives all that is below
  io_thread& io_;
  scope tasks_;
  std::atomic<bool> stop_asked_ = false;  // any thread
  const source_registry& sources_;
  std::unique_ptr<run_context> context_;  // spine
  steady_clock::time_point start_ = steady_clock::now();
  std::uint64_t start_ticks_ = ticks();

 private:
  void begin_closing();
  void end_closing();

  wake_up stop_{io_.executor(), [this] { tasks_.stop(); }};
  wake_up close_{io_.executor(), [this] { begin_closing(); }};
  std::promise<void> closed_;
  struct set_flag {
    std::atomic<bool>* to;
    void operator()() const noexcept { *to = true; }
  };
  std::optional<std::stop_callback<set_flag>> flag_registration_;
  std::optional<on_stop> stop_registration_;
  bool told_who_waits_ = false;
  bool told_why_ended_ = false;  // spine
};

template <class T>
class run final : public run_base {
 public:
  // Makes the streams. Throws `failure` where the plan cannot be run.
  run(std::shared_ptr<engine_core> core, int io_thread_index, plan<T> what)
      : run_base(std::move(core), io_thread_index), what_(std::move(what)) {
    root_ = made(*context_);
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
    if (begun_) {
      throw failure(error(errc::bad_state, "restore() after next(): the run has begun")
                        .hint("run the plan again, and restore the new loader first"));
    }
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
      context_.swap(context);
    });
  }

  std::optional<T> next() {
    check_may_wait();
    begun_ = true;
    const auto asked = steady_clock::now();
    std::promise<typename stream<T>::outcome> answer;
    auto waiting = answer.get_future();
    asio::post(io_.context(), [this, &answer] {
      try {
        tasks_.spawn(pull(this, &answer));
      } catch (...) {
        answer.set_value(error_of(std::current_exception(), "the plan"));
      }
    });
    // The first look, in the middle, shows from when on nothing came back.
    for (bool is_second = false; wait_for(waiting, told_after / 2) == std::future_status::timeout;
         is_second = true) {
      tell_who_waits(is_second);
    }
    auto item = waiting.get();
    if (core_->governor) {
      core_->governor->consumer_waited(
          std::chrono::duration<double>(steady_clock::now() - asked).count());
    }
    if (!item) throw failure(item.error());
    return std::move(*item);
  }

 private:
  std::unique_ptr<stream<T>> made(run_context& context) const {
    check_not_empty(what_.make != nullptr);
    auto root = called_as("the plan", [&] { return what_.make(context); });
    if (!root) throw failure(error(errc::usage, "a plan that makes no stream"));
    if (auto divided = context.memory.divide(); !divided) throw failure(divided.error());
    return root;
  }

  static awaitable<void> pull(run* self, std::promise<typename stream<T>::outcome>* to) {
    typename stream<T>::outcome item = std::optional<T>();
    std::exception_ptr thrown;
    try {
      const bool is_stopped = self->stop_asked_ && !self->is_broken_;
      item = is_stopped ? run_stopped() : co_await self->root_->next();
    } catch (...) {
      thrown = std::current_exception();
    }
    if (thrown) {
      item = self->why_ended(thrown);
    } else if (!item) {
      item = self->why_ended(item.error());
    } else if (*item) {
      std::uint64_t samples = 1;
      if constexpr (requires { (*item)->size(); }) samples = (*item)->size();
      self->context_->counts.delivered += samples;
    }
    self->is_broken_ = !item && !item.error().is_skippable();
    to->set_value(std::move(item));
  }
  void destroy_streams() override { root_.reset(); }

  plan<T> what_;
  std::unique_ptr<stream<T>> root_;
  bool begun_ = false;      // the owner's thread: next() has been called
  bool is_broken_ = false;  // spine: by the error that next() gave last
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
    auto made = std::make_unique<detail::run<T>>(core_, core_->next_io(), what);
    made->stop_by(stop);
    return loader<T>(std::move(made));
  }
  loader<sample> run(const lane_plan<sample>& what, const std::stop_token& stop = {}) {
    return run(interleaved(what), stop);
  }

  runtime& threads() { return *core_->threads; }
  const engine_options& options() const { return core_->options; }
  // The sources of an I/O thread, for reading bytes without a plan.
  const source_registry& sources(int io_thread_index) const {
    return core_->registries.at(static_cast<std::size_t>(io_thread_index));
  }

 private:
  std::shared_ptr<detail::engine_core> core_;
};

}  // namespace millrace
