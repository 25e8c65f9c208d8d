#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/host/clock.h"
#include "engine/threads/pool_controller.h"
#include "engine/threads/runtime.h"
#include "engine/threads/worker_pool.h"
#include "io/registry.h"
#include "pipeline/run/engine_options.h"

namespace millrace::detail {

class run_base;

// Sets the number of threads used in an engine's pool to what its consumers need. Any thread.
class pool_governor {
 public:
  explicit pool_governor(worker_pool& pool);
  // A consumer waited this long for an item.
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

// The state shared by the runs of an engine. Each run keeps it alive, so a loader may outlive its
// engine. A forked child has none of the threads, so it must not wait for anything.
struct engine_core {
  explicit engine_core(const engine_options& o);
  // Destroys kept-alive connections first: they belong to the event loop of their I/O thread.
  ~engine_core();
  engine_core(const engine_core&) = delete;
  engine_core& operator=(const engine_core&) = delete;

  // False in a forked child of the engine's process. Any thread.
  bool is_of_this_process() const;
  // The index of an I/O thread, in rotation. Any thread.
  int next_io();

  engine_options options;
  std::unique_ptr<runtime> threads;
  std::unique_ptr<pool_governor> governor;  // null: the pool has a fixed number of threads
  std::vector<source_registry> registries;  // one for each I/O thread
  // The runs that were destroyed where nobody can wait for their end, each with the next one. They
  // keep the core alive: run_base::end_abandoned().
  std::mutex abandoned_mutex;
  std::unique_ptr<run_base> abandoned;  // guarded by abandoned_mutex

 private:
  pid_t process_;
  std::atomic<unsigned> runs_ = 0;
};

}  // namespace millrace::detail
