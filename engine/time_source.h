#pragma once

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <cstdint>

#include "engine/async.h"
#include "engine/result.h"

namespace millrace {

// Time as the code sees it that talks to servers: the real one, or a simulated one that jumps to
// the next sleeper. One I/O thread.
class time_source {
 public:
  using time_point = steady_clock::time_point;

  virtual ~time_source() = default;
  virtual time_point now() const = 0;
  // Seconds since 1970, UTC.
  virtual std::int64_t unix_seconds() const = 0;
  // Throws operation_aborted when stopped before `when`.
  virtual awaitable<void> sleep_until(time_point when) = 0;

  awaitable<void> sleep(steady_clock::duration time) { return sleep_until(now() + time); }
};

// Stateless, for any thread.
time_source& real_time();

// Waits for `work` until `when`; `on_timeout` is the answer when it took longer. It is cancelled
// then and has ended when this returns, so it must heed cancellation.
template <class T>
awaitable<result<T>> until(time_source& time, time_source::time_point when,
                           awaitable<result<T>> work, error on_timeout) {
  using namespace asio::experimental::awaitable_operators;
  auto first = co_await (std::move(work) || time.sleep_until(when));
  if (first.index() == 1) co_return on_timeout;
  co_return std::move(std::get<0>(first));
}

}  // namespace millrace
