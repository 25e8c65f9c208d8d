#include "engine/coroutines/awaitable.h"

namespace millrace {

void fiber::begin_with(awaitable<void> work) noexcept {
  first_ = last_ = &work.frame_.promise();
  first_->of_ = this;
  work.frame_ = nullptr;
}

void fiber::stop() {
  if (ignores_stops_) return;
  is_stopped_ = true;
  end_wait();
}

void fiber::ignore_stops() {
  ignores_stops_ = true;
  is_stopped_ = false;
}

void fiber::resume() {
  is_waiting_ = false;
  if (is_running_) return;  // the awaited event has already happened
  is_running_ = true;
  while (last_ != nullptr && !is_waiting_) last_->here_.resume();
  is_running_ = false;
  if (last_ != nullptr) return;
  detail::frame* const first = std::exchange(first_, nullptr);
  std::exception_ptr thrown = std::move(first->thrown_);
  first->here_.destroy();
  ended(std::move(thrown));
}

void fiber::drop() noexcept {
  destroy_frames();
  dropped();
}

void fiber::destroy_frames() noexcept {
  last_ = nullptr;
  if (first_ != nullptr) std::exchange(first_, nullptr)->here_.destroy();
}

}  // namespace millrace
