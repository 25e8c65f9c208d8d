#include "engine/threads/worker_pool.h"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "engine/coroutines/async.h"
#include "engine/host/cpu_time.h"
#include "engine/host/standard_error.h"
#include "engine/host/start_thread.h"
#include "engine/host/stepper.h"
#include "engine/host/thread_owner.h"
#include "engine/threads/numa.h"

namespace millrace {

worker_pool::worker_pool(const std::string& name, int threads, std::size_t capacity)
    : jobs_(capacity + static_cast<std::size_t>(threads)),
      used_(threads),
      count_(threads),
      steps_(stepper::in_force()) {
  sem_init(&queued_, 0, 0);
  if (steps_ != nullptr) {
    stepped_.reserve(capacity);  // as many as the I/O threads may submit
    steps_->began(*this);
    return;
  }
  threads_.reserve(static_cast<std::size_t>(threads));
  try {
    for (int i = 0; i < threads; ++i) {
      threads_.push_back(start_thread(name + "-" + std::to_string(i), [this, i] { work(i); }));
    }
  } catch (...) {
    end_threads();
    throw;
  }
}

worker_pool::~worker_pool() {
  if (steps_ != nullptr) {
    while (waiting() > 0) run_one(0);
    steps_->ended(*this);
  }
  end_threads();
}

void worker_pool::end_threads() {
  use(threads());
  for (std::size_t i = 0; i < threads_.size(); ++i) push({});
  for (std::thread& t : threads_) t.join();
  threads_.clear();
  sem_destroy(&queued_);
}

void worker_pool::push(job j) {
  if (steps_ != nullptr) {
    stepped_.push_back(j);
    steps_->queued(*this);
    return;
  }
  if (!jobs_.try_push(j)) {
    to_stderr("millrace: a worker pool got more tasks than it has room for\n");
    std::abort();
  }
  sem_post(&queued_);
}

void worker_pool::use(int threads) {
  used_.store(std::clamp(threads, 1, this->threads()), std::memory_order_relaxed);
  used_.notify_all();
}

void worker_pool::wait_until_used(int index) {
  for (int used = used_.load(std::memory_order_relaxed); index >= used;
       used = used_.load(std::memory_order_relaxed)) {
    used_.wait(used, std::memory_order_relaxed);
  }
}

double worker_pool::busy_seconds() const {
  return 1e-9 * static_cast<double>(busy_ns_.load(std::memory_order_relaxed));
}

double worker_pool::cpu_seconds() const {
  double sum = 0;
  for (const std::thread& t : threads_) {
    clockid_t clock{};
    // The handle is of a thread that has not been joined.
    if (pthread_getcpuclockid(const_cast<std::thread&>(t).native_handle(), &clock) != 0) continue;
    sum += seconds_of(clock);
  }
  return sum;
}

void worker_pool::work(int index) {
  set_owner_of_this_thread(this);
  stay_on_a_node(index);
  for (;;) {
    wait_until_used(index);
    while (sem_wait(&queued_) != 0 && errno == EINTR) {
    }
    job next;
    // There is a task for this wake-up. It may follow one that another I/O thread is still writing
    // into the queue, which takes a few instructions.
    while (!jobs_.try_pop(next)) std::this_thread::yield();
    if (next.task == nullptr) return;
    run(next);
  }
}

void worker_pool::run(const job& j) {
  const auto begun = steady_clock::now();
  j.task->run();
  busy_ns_.fetch_add(std::chrono::nanoseconds(steady_clock::now() - begun).count(),
                     std::memory_order_relaxed);
  j.home->complete(j.task);
}

void worker_pool::run_one(std::size_t which) {
  const job next = stepped_.at(which);
  stepped_.erase(stepped_.begin() + static_cast<std::ptrdiff_t>(which));
  run(next);
}

}  // namespace millrace
