#pragma once

#include <optional>
#include <utility>

#include "engine/base/result.h"
#include "engine/coroutines/async.h"
#include "engine/coroutines/scope.h"

namespace millrace {

// Sleeps. Throws `stopped_coroutine` when stopped.
inline awaitable<void> sleep_for(steady_clock::duration time) {
  steady_timer timer(co_await this_executor, time);
  const auto [interrupted] = co_await timer.async_wait(no_throw);
  if (interrupted) throw stopped_coroutine();
}

// Returns the result of `work` if it ends before `limit`; else nullopt. The other one is stopped,
// and has ended when this returns, so it must be cancellable.
template <class T>
awaitable<std::optional<T>> unless_first(awaitable<void> limit, awaitable<T> work) {
  struct keep {
    static awaitable<void> in(std::optional<T>* to, awaitable<T> from) {
      to->emplace(co_await std::move(from));
    }
  };
  std::optional<T> answer;
  const auto first = co_await first_of(keep::in(&answer, std::move(work)), std::move(limit));
  if (first != 0) answer.reset();
  co_return answer;
}

// Waits for `work`, at most `limit`. Keeps the causes of an early end apart: `on_timeout` when time
// ran out, an exception (`stopped_coroutine`) when the awaiting coroutine was stopped, and `work`'s
// own error when its peer ended it.
template <class T>
awaitable<result<T>> with_deadline(awaitable<result<T>> work, steady_clock::duration limit,
                                   error on_timeout) {
  auto answer = co_await unless_first(sleep_for(limit), std::move(work));
  if (!answer) co_return on_timeout;
  co_return std::move(*answer);
}

}  // namespace millrace
