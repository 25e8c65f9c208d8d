#include "engine/threads/io_thread.h"

#include <fmt/format.h>

#include <boost/system/system_error.hpp>
#include <cassert>
#include <cstdlib>

#include "engine/files/block_io.h"
#include "engine/host/standard_error.h"
#include "engine/host/start_thread.h"
#include "engine/host/stepper.h"
#include "engine/host/thread_owner.h"
#include "engine/threads/numa.h"
#include "engine/threads/worker_pool.h"

namespace millrace {
namespace {

// Of Asio's event loop: an eventfd, an epoll and a timerfd.
error no_event_loop(int index, const boost::system::system_error& why) {
  const int code = why.code().value();
  return error(kind_of(code), fmt::format("cannot create the event loop of I/O thread {}", index))
      .cause(code)
      .hint(kind_of(code) == errc::no_descriptors
                ? "raise `ulimit -n`, or lower engine_options.io_threads (MILLRACE_IO_THREADS)"
                : "lower engine_options.io_threads (MILLRACE_IO_THREADS)");
}

thread_local io_thread* of_this_thread = nullptr;

}  // namespace

io_thread* io_thread::here() {
  return of_this_thread;
}

io_thread::io_thread(int index, const make_block_io& make_files) try
    : files_(make_files(*this)), steps_(stepper::in_force()) {
  if (steps_ != nullptr) {
    steps_->began(*this);
    return;
  }
  thread_ = start_thread(fmt::format("mr-io-{}", index), [this, index] {
    set_owner_of_this_thread(this);
    of_this_thread = this;
    stay_on_a_node(index);
    context_.run();
  });
} catch (const boost::system::system_error& e) {
  throw failure(no_event_loop(index, e));
}

io_thread::~io_thread() {
  // block_io's own watch ends on its thread; then nothing is left to run.
  stop_files_.ask();
  guard_.reset();
  if (steps_ != nullptr) {
    context_.poll();
    steps_->ended(*this);
  } else {
    thread_.join();
  }
  // An abandoned read may finish only now.
  files_.reset();
  drain();
  assert(away_ == 0);
}

bool io_thread::submit(worker_pool& pool, pool_task* task) {
  if (away_ == max_tasks) return false;
  ++away_;
  pool.push(task, *this);
  return true;
}

void io_thread::complete(pool_task* task) noexcept {
  if (!done_.try_push(task)) {  // it has room for all submitted tasks
    to_stderr("millrace: more tasks returned to an I/O thread than it had submitted\n");
    std::abort();
  }
  drain_.ask();
}

void io_thread::stop_files() {
  files_->stop();
}

void io_thread::drain() {
  // The call has begun: a thread that pushes while or after the queue is read asks for another
  // call.
  pool_task* task = nullptr;
  while (done_.try_pop(task)) {
    --away_;
    task->finish();
  }
  came_back_.notify_all();
}

condition::condition(io_thread& home) : condition(home.executor()) {}

}  // namespace millrace
