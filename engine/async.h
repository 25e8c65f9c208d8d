#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>

namespace millrace {

namespace asio = boost::asio;

// The one coroutine type (docs/decisions.md, 1).
template <class T>
using awaitable = asio::awaitable<T, asio::any_io_executor>;

// For operations whose error code is looked at rather than thrown.
inline constexpr auto no_throw = asio::as_tuple(asio::use_awaitable);

using steady_clock = std::chrono::steady_clock;

// Something to wait for on one I/O thread. Waiters are woken in the order in which they came; a
// notification that nobody waits for is forgotten, so wait in a loop around the condition:
//
//   while (queue.empty()) co_await changed.wait();
//
// I/O thread only. Must outlive its waiters. A wait ends early when its coroutine is cancelled; the
// next co_await of that coroutine then throws operation_aborted.
class condition {
 public:
  explicit condition(const asio::any_io_executor& executor)
      : timer_(executor, steady_clock::time_point::max()) {}

  awaitable<void> wait() { co_await timer_.async_wait(no_throw); }
  void notify_one() { timer_.cancel_one(); }
  void notify_all() { timer_.cancel(); }

 private:
  // A timer that never expires is asio's own first-come first-served queue of cancellable waiters.
  asio::steady_timer timer_;
};

}  // namespace millrace
