#include "train/checkpoints/background_work.h"

#include <chrono>
#include <memory>
#include <utility>

#include "engine/host/start_thread.h"

namespace millrace {

background_work::~background_work() {
  if (thread_.joinable()) thread_.join();
}

void background_work::begin(std::function<void()> work) {
  auto task = std::make_shared<std::packaged_task<void()>>(std::move(work));
  ending_ = task->get_future();
  thread_ = start_thread(name_, [task] { (*task)(); });
}

bool background_work::has_ended() const {
  return !ending_.valid() || ending_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

void background_work::wait() {
  if (thread_.joinable()) thread_.join();
  if (ending_.valid()) ending_.get();
}

}  // namespace millrace
