#pragma once

#include <memory>
#include <vector>

namespace millrace {

class io_thread;
class worker_pool;

// `automatic` uses io_uring if the kernel allows it, and otherwise logs one notice. `uring` throws
// `failure` (unsupported) if it is refused.
enum class io_backend { automatic, uring, pread };

struct runtime_options {
  int io_threads = 1;   // 1 feeds several GB/s; more only for many fast sources
  int cpu_threads = 0;  // 0: the CPUs that affinity and cgroup allow
  io_backend io = io_backend::automatic;
  bool register_buffers = false;  // with io_uring, as far as locked memory allows
};

// The threads: I/O threads that run coroutines, and one pool for work that computes. Started by the
// constructor; the destructor ends the pool first (queued work runs), then the I/O threads. All
// scopes on the I/O threads must be joined by then.
class runtime {
 public:
  explicit runtime(const runtime_options& options = {});
  ~runtime();
  runtime(const runtime&) = delete;
  runtime& operator=(const runtime&) = delete;

  int io_threads() const { return static_cast<int>(io_.size()); }
  io_thread& io(int index) { return *io_.at(static_cast<std::size_t>(index)); }
  worker_pool& cpu() { return *cpu_; }

 private:
  std::vector<std::unique_ptr<io_thread>> io_;
  std::unique_ptr<worker_pool> cpu_;
};

}  // namespace millrace
