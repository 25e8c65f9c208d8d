#pragma once

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/this_coro.hpp>

#include "engine/async.h"
#include "engine/result.h"

namespace millrace {

// Waits for `work` at most `limit` long. The causes of an early end stay apart: `on_timeout` when
// the time passed, an exception (operation_aborted) when the awaiting coroutine was stopped, and
// what `work` itself says when its peer ended it. `work` is cancelled on timeout and has ended when
// this returns, so it must heed cancellation.
template <class T>
awaitable<result<T>> with_deadline(awaitable<result<T>> work, steady_clock::duration limit,
                                   error on_timeout) {
  using namespace asio::experimental::awaitable_operators;
  asio::steady_timer timer(co_await asio::this_coro::executor, limit);
  auto first = co_await (std::move(work) || timer.async_wait(asio::use_awaitable));
  if (first.index() == 1) co_return on_timeout;
  co_return std::move(std::get<0>(first));
}

// Sleeps. Throws operation_aborted when stopped meanwhile.
inline awaitable<void> sleep_for(steady_clock::duration time) {
  asio::steady_timer timer(co_await asio::this_coro::executor, time);
  co_await timer.async_wait(asio::use_awaitable);
}

}  // namespace millrace
