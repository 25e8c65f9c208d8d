#pragma once

#include <boost/asio/post.hpp>
#include <future>

#include "engine/coroutines/async.h"
#include "engine/coroutines/spawn_on.h"
#include "engine/threads/io_thread.h"

namespace millrace::testing {

// Runs a coroutine on `io`, waits for it, and returns or throws its result.
template <class T>
T run_on(io_thread& io, awaitable<T> work) {
  return spawn_on(io.executor(), std::move(work)).get();
}

// Lets everything that is ready on `io` run, `rounds` times.
inline void settle(io_thread& io, int rounds = 5) {
  for (int i = 0; i < rounds; ++i) {
    std::promise<void> done;
    asio::post(io.context(), [&] { done.set_value(); });
    done.get_future().get();
  }
}

}  // namespace millrace::testing
