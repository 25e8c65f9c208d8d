#pragma once

#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <vector>

#include "engine/pool_controller.h"
#include "engine/runtime.h"
#include "engine/settings.h"
#include "engine/stats.h"
#include "engine/stop.h"
#include "pipeline/lanes.h"
#include "pipeline/plan.h"

namespace millrace {

struct engine_options {
  // That decode. 0: up to the CPUs that affinity and cgroup allow, and of them as few as keep the
  // consumer from waiting.
  int cpu_threads = 0;
  int io_threads = 1;            // that run the coroutines
  std::size_t memory_bytes = 0;  // budget of each run; 0: a quarter of the memory, at most 4 GiB
  io_backend io = io_backend::automatic;
  bool register_buffers = false;  // with io_uring, as far as locked memory goes
  source_options source;
  host_allocator* allocator = nullptr;  // of batches; null: pages. Must outlive the engine
  // Adds sources of one's own: called once for every I/O thread's registry.
  std::function<void(source_registry&)> add_sources;

  static engine_options from(const settings& s);
};

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

// One run of a plan, without its item type. The owner's thread waits for the spine here.
class run_base {
 public:
  run_base(runtime& threads, io_thread& io, const source_registry& sources,
           const engine_options& options, pool_governor* governor);
  virtual ~run_base() = default;
  run_base(const run_base&) = delete;
  run_base& operator=(const run_base&) = delete;

  run_context& context() { return context_; }
  run_stats stats();
  ledger counts();
  // Any thread: ends the run at its next suspensions. next() then throws `stopped`.
  void stop();
  // The owner's thread: stops, waits for all coroutines, and destroys the streams on the spine.
  void close();
  // Runs `f` on the spine and waits for it. What it throws is thrown here.
  void on_spine(const std::function<void()>& f);

 protected:
  // How long a consumer waits before it is told why.
  static constexpr std::chrono::seconds told_after{10};
  // Where stages have waited for memory since the last call: a notice, once.
  void tell_who_waits();
  virtual void destroy_streams() = 0;
  io_thread& io_;
  pool_governor* governor_;  // null: the pool has a fixed number of threads
  scope tasks_;
  run_context context_;
  steady_clock::time_point start_ = steady_clock::now();
  std::uint64_t start_ticks_ = ticks();

 private:
  bool told_who_waits_ = false;
};

template <class T>
class run final : public run_base {
 public:
  using run_base::run_base;

  void start(const plan<T>& what) {
    if (!what.make) throw failure(error(errc::usage, "an empty plan"));
    root_ = what.make(context_);
    if (auto divided = context_.memory.divide(); !divided) throw failure(divided.error());
  }
  stream<T>& root() { return *root_; }

  std::optional<T> next() {
    const auto asked = steady_clock::now();
    std::promise<typename stream<T>::outcome> answer;
    auto waiting = answer.get_future();
    asio::post(io_.context(), [this, &answer] { tasks_.spawn(pull(root_.get(), &answer)); });
    while (waiting.wait_for(told_after) == std::future_status::timeout) tell_who_waits();
    auto item = waiting.get();
    if (governor_ != nullptr) {
      governor_->consumer_waited(
          std::chrono::duration<double>(steady_clock::now() - asked).count());
    }
    if (!item) throw failure(item.error());
    return std::move(*item);
  }

 private:
  static awaitable<void> pull(stream<T>* from, std::promise<typename stream<T>::outcome>* to) {
    try {
      to->set_value(co_await from->next());
    } catch (const failure& f) {
      to->set_value(f.why());
    } catch (const boost::system::system_error& e) {
      const bool stopped = e.code() == asio::error::operation_aborted;
      to->set_value(error(stopped ? errc::stopped : errc::internal,
                          stopped ? "the run was stopped" : e.what()));
    } catch (const std::exception& e) {
      to->set_value(error(errc::internal, e.what()));
    }
  }
  void destroy_streams() override { root_.reset(); }

  std::unique_ptr<stream<T>> root_;
};

}  // namespace detail

// A plan being run, seen from the thread that consumes it.
//
//   for (auto& batch : loader) ...     one epoch; again for the next one
//
// One consumer thread; stop() from any. What goes wrong is thrown as `failure`. Items hold memory
// of the budget: let go of them, or the stages in front wait. The destructor stops the run and
// waits for it, on the consumer's thread.
template <class T>
class loader {
 public:
  explicit loader(std::unique_ptr<detail::run<T>> r) : run_(std::move(r)) {}
  loader(loader&&) noexcept = default;
  loader& operator=(loader&&) noexcept = delete;
  ~loader() {
    if (run_) run_->close();
  }

  // The next item; nullopt at the end of an epoch. Called again, it goes on with the next epoch;
  // the end comes twice in a row when there is none.
  std::optional<T> next() {
    auto item = run_->next();
    if (item) {
      std::uint64_t samples = 1;
      if constexpr (requires { item->size(); }) samples = item->size();
      run_->context().counts.delivered += samples;
    }
    return item;
  }

  // The position behind the last item that next() gave.
  state save() {
    state now;
    run_->on_spine([&] { run_->root().save(now); });
    return now;
  }
  // Before the first next(). Throws `failure` (bad_state) when the state belongs to another plan.
  void restore(const state& from) {
    run_->on_spine([&] { run_->root().restore(from); });
  }
  run_stats stats() { return run_->stats(); }
  ledger counts() { return run_->counts(); }
  void stop() { run_->stop(); }

  class iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = T;
    using difference_type = std::ptrdiff_t;
    using pointer = T*;
    using reference = T&;

    explicit iterator(loader* of) : of_(of) { ++*this; }
    iterator() = default;
    T& operator*() { return *item_; }
    T* operator->() { return &*item_; }
    iterator& operator++() {
      item_.reset();  // its memory first
      item_ = of_->next();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return !item_; }

   private:
    loader* of_ = nullptr;
    std::optional<T> item_;
  };
  iterator begin() { return iterator(this); }
  std::default_sentinel_t end() { return {}; }

 private:
  std::unique_ptr<detail::run<T>> run_;
};

// Threads, and what runs of plans share. Outlives its loaders. run() from one thread at a time.
class engine {
 public:
  explicit engine(const engine_options& options = {});
  ~engine();
  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;

  // Starts a plan. Throws `failure`: no_memory when the budget cannot carry it.
  template <class T>
  loader<T> run(const plan<T>& what) {
    auto made = std::make_unique<detail::run<T>>(*threads_, next_io(), next_sources(), options_,
                                                 governor_.get());
    made->start(what);
    return loader<T>(std::move(made));
  }
  loader<sample> run(const lane_plan<sample>& what) { return run(interleaved(what)); }

  runtime& threads() { return *threads_; }
  const engine_options& options() const { return options_; }
  // The sources of an I/O thread, for reading bytes without a plan.
  const source_registry& sources(int io_thread_index) const {
    return registries_.at(static_cast<std::size_t>(io_thread_index));
  }

 private:
  io_thread& next_io();
  const source_registry& next_sources() const;

  engine_options options_;
  std::unique_ptr<runtime> threads_;
  std::unique_ptr<detail::pool_governor> governor_;
  std::vector<source_registry> registries_;  // one for each I/O thread
  int turn_ = -1;
};

}  // namespace millrace
