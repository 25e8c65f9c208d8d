#pragma once

#include <cstdint>

#include "engine/base/result.h"
#include "engine/coroutines/awaitable.h"
#include "engine/coroutines/timer.h"
#include "engine/host/clock.h"

namespace millrace {

// The time of one component, passed to its constructor: the HTTP client, its connections and the
// signers of requests. Unit tests give it a time that jumps to the next sleeper. In programs, and
// in a simulation of the whole process, it is real_time(), that is, steady_clock
// (engine/host/clock.h), which all other code uses directly. One I/O thread.
class time_source {
 public:
  using time_point = steady_clock::time_point;

  virtual ~time_source() = default;
  virtual time_point now() const = 0;
  // Seconds since 1970, UTC.
  virtual std::int64_t unix_seconds() const = 0;
  // Throws `stopped_coroutine` when stopped before `when`.
  virtual awaitable<void> sleep_until(time_point when) = 0;

  awaitable<void> sleep(steady_clock::duration time) { return sleep_until(now() + time); }
};

// The steady_clock. Stateless, for any thread.
time_source& real_time();

// Waits for `work` until `when`; returns `on_timeout` when it took longer. `work` is then cancelled
// and has ended when this returns, so it must be cancellable.
template <class T>
awaitable<result<T>> until(time_source& time, time_source::time_point when,
                           awaitable<result<T>> work, error on_timeout) {
  auto answer = co_await unless_first(time.sleep_until(when), std::move(work));
  if (!answer) co_return on_timeout;
  co_return std::move(*answer);
}

}  // namespace millrace
