#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>
#include <thread>

#include "engine/async.h"
#include "engine/worker_pool.h"

namespace millrace {

class block_io;
enum class io_backend;

// One thread that runs coroutines: an io_context, its own block_io, and the way back from the
// pools. Everything that runs here runs one at a time, so code on one I/O thread needs no locks.
class io_thread {
 public:
  // The `index`-th of its runtime: on hosts of several NUMA nodes they take turns over the nodes.
  io_thread(int index, io_backend backend, bool register_buffers);
  // Joins the thread. All coroutines must have ended (their scopes are joined by their owners).
  ~io_thread();
  io_thread(const io_thread&) = delete;
  io_thread& operator=(const io_thread&) = delete;

  asio::any_io_executor executor() { return context_.get_executor(); }
  asio::io_context& context() { return context_; }
  block_io& files() { return *files_; }

  // Tasks that may be away in pools at once; beyond that offload() waits.
  static constexpr int max_tasks = 4096;

  // This thread only. Gives `task` to `pool`; false when max_tasks are away. The task is not owned:
  // it must live until its finish() is called.
  bool submit(worker_pool& pool, pool_task* task);
  // This thread only: notified whenever tasks have come back.
  condition& tasks_came_back() { return came_back_; }

 private:
  friend class worker_pool;
  void complete(pool_task* task);  // any thread
  void drain();

  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard_{context_.get_executor()};
  condition came_back_{context_.get_executor()};
  int away_ = 0;
  bounded_queue<pool_task*> done_{max_tasks};
  std::atomic<bool> drain_posted_ = false;
  std::unique_ptr<block_io> files_;
  std::thread thread_;
};

}  // namespace millrace
