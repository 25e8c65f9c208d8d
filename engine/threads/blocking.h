#pragma once

#include <type_traits>
#include <utility>

#include "engine/threads/io_thread.h"
#include "engine/threads/offload.h"

namespace millrace {

// Runs `f`, which blocks for files, for a coroutine that does not know its I/O thread: by offload()
// on an I/O thread of a runtime, in place elsewhere (an event loop on a program's own thread, a
// simulator). `f` may use what it refers to until it has returned.
template <class F>
awaitable<std::invoke_result_t<F&>> blocking(F f) {
  io_thread* const home = io_thread::here();
  if (home == nullptr || home->pool() == nullptr) co_return f();
  co_return co_await offload(*home, *home->pool(), std::move(f));
}

}  // namespace millrace
