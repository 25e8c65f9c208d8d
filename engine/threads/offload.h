#pragma once

#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

#include "engine/coroutines/awaitable.h"
#include "engine/threads/pool_task.h"

namespace millrace {

class io_thread;
class worker_pool;

namespace detail {

template <class F>
class offloaded final : public pool_task {
 public:
  using value_type = std::invoke_result_t<F&>;

  explicit offloaded(F f) : f_(std::move(f)) {}

  void run() noexcept override {
    try {
      if constexpr (std::is_void_v<value_type>) {
        f_();
      } else {
        value_.emplace(f_());
      }
    } catch (...) {
      thrown_ = std::current_exception();
    }
  }
  void finish() noexcept override {
    finished_ = true;
    if (asker_.is_taken()) asker_.resume();
  }

  bool finished() const { return finished_; }
  parking& asker() { return asker_; }
  value_type take() {
    if (thrown_) std::rethrow_exception(thrown_);
    if constexpr (!std::is_void_v<value_type>) return std::move(*value_);
  }

 private:
  using stored = std::conditional_t<std::is_void_v<value_type>, bool, value_type>;
  F f_;
  parking asker_;
  bool finished_ = false;
  std::optional<stored> value_;
  std::exception_ptr thrown_;
};

// io_thread::submit() and tasks_came_back().
bool submit(io_thread& home, worker_pool& pool, pool_task* task);
awaitable<void> tasks_came_back(io_thread& home);

}  // namespace detail

// Runs `f` on a thread of `pool` and returns to `home` with its result or exception: the only
// crossing between the spine and a pool. Call on `home`'s thread.
//
// Not cancellable once `f` is queued: `f` may use what it refers to until it has returned, so the
// wait always lasts until then.
template <class F>
awaitable<std::invoke_result_t<F&>> offload(io_thread& home, worker_pool& pool, F f) {
  detail::offloaded<F> task(std::move(f));
  while (!detail::submit(home, pool, &task)) co_await detail::tasks_came_back(home);
  const uninterrupted here(co_await this_fiber);
  if (!task.finished()) co_await task.asker().wait();  // needs no memory: it cannot fail
  co_return task.take();
}

}  // namespace millrace
