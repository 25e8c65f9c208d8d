#include "engine/threads/offload.h"

#include "engine/threads/io_thread.h"

namespace millrace::detail {

bool submit(io_thread& home, worker_pool& pool, pool_task* task) {
  return home.submit(pool, task);
}

awaitable<void> tasks_came_back(io_thread& home) {
  return home.tasks_came_back().wait();
}

}  // namespace millrace::detail
