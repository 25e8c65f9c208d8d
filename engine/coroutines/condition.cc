#include "engine/coroutines/condition.h"

#include "engine/coroutines/async.h"

namespace millrace {

// A timer that never expires is Asio's own first-come first-served queue of cancellable waiters.
class condition::waiters final : public steady_timer {
 public:
  explicit waiters(const io_executor& home) : steady_timer(home, steady_clock::time_point::max()) {}
};

condition::condition(const io_executor& home) : waiters_(std::make_unique<waiters>(home)) {}
condition::~condition() = default;

awaitable<void> condition::wait() {
  co_await waiters_->async_wait(no_throw);
}
void condition::notify_one() {
  waiters_->cancel_one();
}
void condition::notify_all() {
  waiters_->cancel();
}

}  // namespace millrace
