#include "engine/worker_pool.h"

#include <pthread.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "engine/io_thread.h"

namespace millrace {

worker_pool::worker_pool(const std::string& name, int threads, std::size_t capacity)
    : jobs_(capacity + static_cast<std::size_t>(threads)) {
  sem_init(&queued_, 0, 0);
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { work(); });
    const std::string thread_name = (name + "-" + std::to_string(i)).substr(0, 15);
    pthread_setname_np(threads_.back().native_handle(), thread_name.c_str());
  }
}

worker_pool::~worker_pool() {
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

void worker_pool::work() {
  for (;;) {
    while (sem_wait(&queued_) != 0 && errno == EINTR) {
    }
    job next;
    // A task is there for this wake-up. It can be behind one that another I/O thread is putting
    // into the queue at this moment, for the few instructions that this takes.
    while (!jobs_.try_pop(next)) std::this_thread::yield();
    if (next.task == nullptr) return;
    next.task->run();
    next.home->complete(next.task);
  }
}

}  // namespace millrace
