#pragma once

#include <memory>
#include <vector>

namespace millrace {

class io_thread;
class worker_pool;

// `automatic` uses io_uring if the kernel allows it, and otherwise logs one notice. `uring` throws
// `failure` (unsupported) if it is refused.
enum class io_backend { automatic, uring, pread };

// The threads of a runtime. An engine makes its own of engine_options.
struct runtime_options {
  int io_threads = 1;                     // 1 feeds several GB/s; more only for many fast sources
  int cpu_threads = 0;                    // 0: the CPUs that affinity and cgroup allow
  io_backend io = io_backend::automatic;  // how files are read
  bool register_buffers = false;          // with io_uring, as far as locked memory allows
};

// The threads: I/O threads that run coroutines, and one pool for work that computes. Started by the
// constructor; the destructor ends the pool first (queued work runs), then the I/O threads. All
// scopes on the I/O threads must be joined by then.
class runtime {
 public:
  // Starts the threads. Throws `failure`: unsupported for a refused io_backend::uring, or the kind
  // of the host's refusal to start a thread.
  explicit runtime(const runtime_options& options = {});
  ~runtime();
  runtime(const runtime&) = delete;
  runtime& operator=(const runtime&) = delete;

  // The number of I/O threads.
  int io_threads() const { return static_cast<int>(io_.size()); }
  // One of them, in [0, io_threads()); throws std::out_of_range otherwise. Lives as long as this.
  io_thread& io(int index) { return *io_.at(static_cast<std::size_t>(index)); }
  // The pool. Lives as long as this.
  worker_pool& cpu() { return *cpu_; }

 private:
  std::vector<std::unique_ptr<io_thread>> io_;
  std::unique_ptr<worker_pool> cpu_;
};

}  // namespace millrace
