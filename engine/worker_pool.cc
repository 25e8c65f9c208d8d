#include "engine/worker_pool.h"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "engine/async.h"
#include "engine/cpu_time.h"
#include "engine/io_thread.h"
#include "engine/numa.h"

namespace millrace {

worker_pool::worker_pool(const std::string& name, int threads, std::size_t capacity)
    : jobs_(capacity + static_cast<std::size_t>(threads)), used_(threads) {
  sem_init(&queued_, 0, 0);
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this, i] { work(i); });
    const std::string thread_name = (name + "-" + std::to_string(i)).substr(0, 15);
    pthread_setname_np(threads_.back().native_handle(), thread_name.c_str());
  }
}

worker_pool::~worker_pool() {
  use(threads());
  for (std::size_t i = 0; i < threads_.size(); ++i) push({});
  for (std::thread& t : threads_) t.join();
  sem_destroy(&queued_);
}

void worker_pool::push(job j) {
  if (!jobs_.try_push(j)) {
    std::fputs("millrace: a worker pool was given more tasks than it has room for\n", stderr);
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
  stay_on_a_node(index);
  for (;;) {
    wait_until_used(index);
    while (sem_wait(&queued_) != 0 && errno == EINTR) {
    }
    job next;
    // A task is there for this wake-up. It can be behind one that another I/O thread is putting
    // into the queue at this moment, for the few instructions that this takes.
    while (!jobs_.try_pop(next)) std::this_thread::yield();
    if (next.task == nullptr) return;
    const auto begun = steady_clock::now();
    next.task->run();
    busy_ns_.fetch_add(std::chrono::nanoseconds(steady_clock::now() - begun).count(),
                       std::memory_order_relaxed);
    next.home->complete(next.task);
  }
}

}  // namespace millrace
