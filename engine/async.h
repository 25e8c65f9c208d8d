#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <cstddef>
#include <new>
#include <optional>
#include <tuple>
#include <utility>

#include "engine/clock.h"

namespace millrace {

namespace asio = boost::asio;

// The one coroutine type (docs/decisions.md, 1).
template <class T>
using awaitable = asio::awaitable<T, asio::any_io_executor>;

// A place where a coroutine waits until resume(), without memory of its own. One coroutine at a
// time. It must outlive the wait, as a local variable of the coroutine does. The wait cannot be
// cancelled: whoever holds the place must resume it. I/O thread only.
//
//   co_await place.wait();
class parking {
 public:
  parking() = default;
  parking(const parking&) = delete;
  parking& operator=(const parking&) = delete;

  bool is_taken() const { return act_ != nullptr; }
  // Runs the coroutine here, up to its next suspension: it may have destroyed this when it returns.
  void resume() { std::exchange(act_, nullptr)(room_, true); }
  // Destroys the coroutine instead.
  void drop() { std::exchange(act_, nullptr)(room_, false); }

  // An operation to be awaited, as Asio sees it.
  struct operation {
    parking* at;
    template <asio::completion_token_for<void()> Token>
    auto operator()(Token&& token) const {
      return asio::async_initiate<Token, void()>(
          [](auto coroutine, parking* to) { to->keep(std::move(coroutine)); }, token, at);
    }
  };
  operation wait() { return {this}; }

 private:
  template <class Coroutine>
  void keep(Coroutine&& coroutine) noexcept {
    using kept = std::decay_t<Coroutine>;
    static_assert(sizeof(kept) <= sizeof room_ && alignof(kept) <= alignof(std::max_align_t));
    new (room_) kept(std::forward<Coroutine>(coroutine));
    act_ = [](std::byte* room, bool resumes) {
      auto* const there = std::launder(reinterpret_cast<kept*>(room));
      kept here(std::move(*there));
      there->~kept();
      if (resumes) std::move(here)();
    };
  }

  void (*act_)(std::byte* room, bool resumes) = nullptr;
  alignas(std::max_align_t) std::byte room_[64];
};

// The completion token for all operations that coroutines wait for. The result is a tuple whose
// first element is the error code: nothing is thrown.
//
// Unlike Asio's use_awaitable it starts the operation before the coroutine is suspended, so that an
// operation that lacks the memory to start throws in the coroutine; Asio would lose the coroutine
// and end the program.
struct no_throw_t {};
inline constexpr no_throw_t no_throw;

namespace detail {

template <class... Results>
struct awaited {
  parking place;
  std::optional<std::tuple<Results...>> results;
};

template <class... Results>
class awaited_handler {
 public:
  using cancellation_slot_type = asio::cancellation_slot;

  awaited_handler(awaited<Results...>* to, asio::cancellation_slot slot) : to_(to), slot_(slot) {}
  awaited_handler(awaited_handler&& other) noexcept
      : to_(std::exchange(other.to_, nullptr)), slot_(other.slot_) {}
  awaited_handler& operator=(awaited_handler&&) = delete;
  // An event loop that is destroyed drops its operations, and so the coroutines that wait for them.
  ~awaited_handler() {
    if (to_ != nullptr && to_->place.is_taken()) to_->place.drop();
  }

  asio::cancellation_slot get_cancellation_slot() const noexcept { return slot_; }
  void operator()(Results... results) {
    awaited<Results...>* const to = std::exchange(to_, nullptr);
    to->results.emplace(std::move(results)...);
    to->place.resume();
  }

 private:
  awaited<Results...>* to_;
  asio::cancellation_slot slot_;
};

}  // namespace detail

}  // namespace millrace

template <class... Results>
class boost::asio::async_result<millrace::no_throw_t, void(Results...)> {
 public:
  template <class Initiation, class... Arguments>
  static millrace::awaitable<std::tuple<std::decay_t<Results>...>> initiate(
      Initiation initiation, millrace::no_throw_t /*token*/, Arguments... arguments) {
    millrace::detail::awaited<std::decay_t<Results>...> here;
    auto slot = (co_await this_coro::cancellation_state).slot();
    try {
      std::move(initiation)(
          millrace::detail::awaited_handler<std::decay_t<Results>...>(&here, slot),
          std::move(arguments)...);
    } catch (...) {
      slot.clear();
      throw;
    }
    co_await here.place.wait();
    co_return std::move(*here.results);
  }
};

namespace millrace {

// A timer of the engine's clock.
class steady_timer : public asio::basic_waitable_timer<steady_clock> {
  using base = asio::basic_waitable_timer<steady_clock>;

 public:
  explicit steady_timer(const asio::any_io_executor& executor) : base(executor) {}
  steady_timer(const asio::any_io_executor& executor, steady_clock::time_point when)
      : base(executor, steady_clock::firing_at(when)) {}
  steady_timer(const asio::any_io_executor& executor, steady_clock::duration time)
      : steady_timer(executor, steady_clock::after(time)) {}

  std::size_t expires_at(steady_clock::time_point when) {
    return base::expires_at(steady_clock::firing_at(when));
  }
  std::size_t expires_after(steady_clock::duration time) {
    return expires_at(steady_clock::after(time));
  }
};

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
  steady_timer timer_;
};

}  // namespace millrace
