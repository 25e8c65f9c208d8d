#pragma once

#include <semaphore.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/threads/bounded_queue.h"
#include "engine/threads/pool_task.h"

namespace millrace {

class stepper;

// The submitter of a task, which gets it back.
class task_home {
 public:
  virtual void complete(pool_task* task) noexcept = 0;  // any thread; the task has run

 protected:
  ~task_home() = default;
};

// Named threads fed by a lock-free bounded queue. An idle worker sleeps on a semaphore that counts
// the tasks queued: it does not spin, and no wake-up is missed. On a host of several NUMA nodes the
// threads are distributed over them.
class worker_pool {
 public:
  // Takes up to `capacity` tasks at once; the I/O threads ensure that there are never more
  // (io_thread::max_tasks each). Throws `failure` (no_memory) if the host refuses a thread.
  worker_pool(const std::string& name, int threads, std::size_t capacity);
  // Runs the queued tasks, then joins the threads.
  ~worker_pool();
  worker_pool(const worker_pool&) = delete;
  worker_pool& operator=(const worker_pool&) = delete;

  int threads() const { return count_; }

  // Queues `task`, which returns to `home`. Any thread.
  void push(pool_task* task, task_home& home) { push({task, &home}); }

  // Sets how many of the threads take work, 1 to threads(); all, at first. The others finish their
  // current task and sleep. Any thread.
  void use(int threads);
  int used() const { return used_.load(std::memory_order_relaxed); }
  // Wall time that tasks have taken, summed over the threads. Any thread.
  double busy_seconds() const;
  // CPU time of the threads so far. Not while the pool is being destroyed.
  double cpu_seconds() const;

  // For a stepper, which runs the tasks: how many there are, and run one of them on this thread.
  // The first threads() of them may end in any order.
  std::size_t waiting() const { return stepped_.size(); }
  void run_one(std::size_t which);

 private:
  struct job {
    pool_task* task = nullptr;  // null: the worker ends
    task_home* home = nullptr;
  };
  void push(job j);
  void run(const job& j);
  void work(int index);
  void end_threads();
  void wait_until_used(int index);

  bounded_queue<job> jobs_;
  sem_t queued_{};
  std::atomic<int> used_;
  std::atomic<std::int64_t> busy_ns_{0};
  int count_;
  stepper* steps_;            // null: the threads run
  std::vector<job> stepped_;  // else what they would run
  std::vector<std::thread> threads_;
};

}  // namespace millrace
