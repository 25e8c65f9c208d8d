#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "engine/coroutines/async.h"
#include "engine/coroutines/condition.h"
#include "engine/coroutines/posted_call.h"
#include "engine/threads/worker_pool.h"

namespace millrace {

class block_io;
class stepper;

// One thread that runs coroutines: an io_context, its own block_io, and the way back from the
// pools. Everything that runs here runs one at a time, so code on one I/O thread needs no locks.
class io_thread final : private task_home {
 public:
  using make_block_io = std::function<std::unique_ptr<block_io>(io_thread&)>;
  // `index` within the runtime: on hosts with several NUMA nodes, threads are distributed over the
  // nodes. Throws `failure`: no_memory if the host refuses a thread, no_descriptors.
  io_thread(int index, const make_block_io& make_files);
  // Joins the thread. All coroutines must have ended (their scopes are joined by their owners).
  ~io_thread();
  io_thread(const io_thread&) = delete;
  io_thread& operator=(const io_thread&) = delete;

  // The one whose thread calls; null: another thread.
  static io_thread* here();

  // The pool for what blocks, which outlives every coroutine here. Set it before work begins.
  void set_pool(worker_pool& pool) { pool_ = &pool; }
  worker_pool* pool() { return pool_; }

  io_executor executor() { return context_.get_executor(); }
  asio::io_context& context() { return context_; }
  block_io& files() { return *files_; }

  // The most tasks in pools at once; beyond that offload() waits.
  static constexpr int max_tasks = 4096;

  // This thread only. Submits `task` to `pool`; false if max_tasks are already in pools. The task
  // is not owned: it must live until its finish() is called.
  bool submit(worker_pool& pool, pool_task* task);
  // This thread only: notified whenever tasks have come back.
  condition& tasks_came_back() { return came_back_; }

 private:
  void complete(pool_task* task) noexcept override;
  void drain();
  void stop_files();

  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard_{context_.get_executor()};
  condition came_back_{executor()};
  int away_ = 0;
  worker_pool* pool_ = nullptr;
  bounded_queue<pool_task*> done_{max_tasks};
  // One call wakes the thread for all completions that arrive before it drains.
  const wake_up drain_{executor(), [this] { drain(); }};
  const wake_up stop_files_{executor(), [this] { stop_files(); }};
  std::unique_ptr<block_io> files_;
  stepper* steps_;  // null: the thread runs
  std::thread thread_;
};

}  // namespace millrace
