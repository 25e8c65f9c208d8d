#pragma once

#include <boost/asio/post.hpp>
#include <exception>
#include <future>
#include <memory>
#include <type_traits>
#include <utility>

#include "engine/coroutines/async.h"

namespace millrace {

namespace detail {

template <class T>
class future_fiber final : public asio_fiber {
 public:
  future_fiber(const asio::any_io_executor& home, awaitable<T> work) : asio_fiber(home) {
    begin_with(keep(std::move(work), &to_));
  }
  std::future<T> answer() { return to_.get_future(); }

 private:
  static awaitable<void> keep(awaitable<T> work, std::promise<T>* to) {
    if constexpr (std::is_void_v<T>) {
      co_await std::move(work);
      to->set_value();
    } else {
      to->set_value(co_await std::move(work));
    }
  }
  void ended(std::exception_ptr thrown) noexcept override {
    if (thrown) to_.set_exception(std::move(thrown));
    delete this;
  }
  void dropped() noexcept override { delete this; }

  std::promise<T> to_;
};

}  // namespace detail

// Starts a coroutine outside of any scope, on an I/O thread: for the owner of that thread, who
// waits for its result or exception (broken_promise if the event loop is destroyed first). Any
// thread.
template <class T>
std::future<T> spawn_on(const asio::any_io_executor& home, awaitable<T> work) {
  auto started = std::make_unique<detail::future_fiber<T>>(home, std::move(work));
  auto answer = started->answer();
  asio::post(home, [f = std::move(started)]() mutable { f.release()->resume(); });
  return answer;
}

}  // namespace millrace
