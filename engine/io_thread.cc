#include "engine/io_thread.h"

#include <fmt/format.h>
#include <pthread.h>

#include <boost/asio/post.hpp>
#include <cassert>

#include "engine/block_io.h"
#include "engine/numa.h"

namespace millrace {

io_thread::io_thread(int index, io_backend backend, bool register_buffers)
    : files_(make_block_io(*this, backend, register_buffers)) {
  thread_ = std::thread([this, index] {
    stay_on_a_node(index);
    context_.run();
  });
  pthread_setname_np(thread_.native_handle(), fmt::format("mr-io-{}", index).c_str());
}

io_thread::~io_thread() {
  // block_io's own watch ends on its thread; then nothing is left to run.
  asio::post(context_, [this] { files_->stop(); });
  guard_.reset();
  thread_.join();
  // A read that was abandoned may come back only now.
  files_.reset();
  drain();
  assert(away_ == 0);
}

bool io_thread::submit(worker_pool& pool, pool_task* task) {
  if (away_ == max_tasks) return false;
  ++away_;
  pool.push({task, this});
  return true;
}

void io_thread::complete(pool_task* task) {
  // There is room: no more than max_tasks are away.
  done_.try_push(task);
  // One post wakes the thread for all completions that arrive before it drains.
  if (!drain_posted_.exchange(true, std::memory_order_acq_rel)) {
    asio::post(context_, [this] { drain(); });
  }
}

void io_thread::drain() {
  // Lowered before the queue is read: whoever pushes after the read posts again, and so does
  // whoever is pushing while it is read.
  drain_posted_.exchange(false, std::memory_order_acq_rel);
  pool_task* task = nullptr;
  while (done_.try_pop(task)) {
    --away_;
    task->finish();
  }
  came_back_.notify_all();
}

}  // namespace millrace
