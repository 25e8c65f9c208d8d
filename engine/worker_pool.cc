#include "engine/worker_pool.h"

#include <concurrentqueue/blockingconcurrentqueue.h>
#include <pthread.h>

#include "engine/io_thread.h"

namespace millrace {
namespace {

struct job {
  pool_task* task = nullptr;  // null: the worker ends
  io_thread* home = nullptr;
};

struct no_spinning : moodycamel::ConcurrentQueueDefaultTraits {
  static const int MAX_SEMA_SPINS = 0;
};

}  // namespace

struct worker_pool::queue {
  moodycamel::BlockingConcurrentQueue<job, no_spinning> jobs;
};

worker_pool::worker_pool(const std::string& name, int threads)
    : queue_(std::make_unique<queue>()) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { work(); });
    const std::string thread_name = (name + "-" + std::to_string(i)).substr(0, 15);
    pthread_setname_np(threads_.back().native_handle(), thread_name.c_str());
  }
}

worker_pool::~worker_pool() {
  for (std::size_t i = 0; i < threads_.size(); ++i) queue_->jobs.enqueue(job{});
  for (std::thread& t : threads_) t.join();
}

void worker_pool::push(pool_task* task, io_thread* home) { queue_->jobs.enqueue({task, home}); }

void worker_pool::work() {
  for (;;) {
    job next;
    queue_->jobs.wait_dequeue(next);
    if (next.task == nullptr) return;
    next.task->run();
    next.home->complete(next.task);
  }
}

}  // namespace millrace
