#pragma once

#include <memory>

#include "engine/coroutines/awaitable.h"

namespace millrace {

class io_executor;
class io_thread;

// Something to wait for on one I/O thread. Waiters are woken in order of arrival; a notification
// without a waiter is lost, so wait in a loop around the condition:
//
//   while (queue.empty()) co_await changed.wait();
//
// I/O thread only. Must outlive its waiters. A wait ends early when its coroutine is asked to stop;
// the next co_await of that coroutine then throws `stopped_coroutine`.
class condition {
 public:
  // For coroutines of the I/O thread `home`.
  explicit condition(const io_executor& home);
  explicit condition(io_thread& home);
  ~condition();
  condition(const condition&) = delete;
  condition& operator=(const condition&) = delete;

  // Waits for the next notification.
  awaitable<void> wait();
  // Wakes the coroutine that has waited longest.
  void notify_one();
  // Wakes all that wait now.
  void notify_all();

 private:
  class waiters;
  std::unique_ptr<waiters> waiters_;
};

}  // namespace millrace
