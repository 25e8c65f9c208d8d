#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace millrace {

class io_thread;

// A piece of work that crosses from an I/O thread to a pool and back.
class pool_task {
 public:
  virtual ~pool_task() = default;
  virtual void run() noexcept = 0;     // on a pool thread
  virtual void finish() noexcept = 0;  // afterwards, on the I/O thread that submitted it
};

// Named threads fed by a lock-free queue. A sleeping worker waits on a semaphore: it does not spin,
// and no wake-up is missed. Queues are bounded by the I/O threads, each of which admits a limited
// number of tasks (io_thread::max_tasks).
class worker_pool {
 public:
  worker_pool(const std::string& name, int threads);
  // Runs what is queued, then joins the threads.
  ~worker_pool();
  worker_pool(const worker_pool&) = delete;
  worker_pool& operator=(const worker_pool&) = delete;

  int threads() const { return static_cast<int>(threads_.size()); }

 private:
  friend class io_thread;
  struct queue;
  void push(pool_task* task, io_thread* home);
  void work();

  std::unique_ptr<queue> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace millrace
