#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/io_context.hpp>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "engine/coroutines/awaitable.h"
#include "engine/host/clock.h"

namespace millrace {

namespace asio = boost::asio;

// The event loop of an I/O thread, for running work there. A value.
class io_executor final : public asio::any_io_executor {
 public:
  io_executor(asio::any_io_executor of) : asio::any_io_executor(std::move(of)) {}
  io_executor(const asio::io_context::executor_type& of) : asio::any_io_executor(of) {}
};

// A fiber on an I/O thread: all are.
class asio_fiber : public fiber {
 public:
  explicit asio_fiber(asio::any_io_executor home) : home_(std::move(home)) {}

  // The executor of its I/O thread.
  const asio::any_io_executor& home() const { return home_; }
  // The slot of the awaited operation: stop() emits to it.
  asio::cancellation_slot on_stop() { return signal_.slot(); }

 protected:
  void end_wait() noexcept override { signal_.emit(asio::cancellation_type::terminal); }

 private:
  asio::any_io_executor home_;
  asio::cancellation_signal signal_;
};

// The type of `this_executor`: `co_await this_executor` is the executor of the I/O thread. Never
// waits, never throws.
struct this_executor_t : detail::asks_fiber {
  // The result of `co_await`. Lives as long as the coroutine.
  const asio::any_io_executor& operator()(fiber& of) const {
    return static_cast<asio_fiber&>(of).home();
  }
};
// See this_executor_t.
inline constexpr this_executor_t this_executor;

// The type of `no_throw`, the completion token for all Asio and Beast operations that coroutines
// await. The result is a tuple whose first element is the error code; only an operation without
// memory to start throws.
struct no_throw_t {};
// See no_throw_t.
inline constexpr no_throw_t no_throw;

namespace detail {

template <class Results>
struct awaited {
  parking place;
  std::optional<Results> results;
};

template <class Results>
class awaited_handler {
 public:
  using cancellation_slot_type = asio::cancellation_slot;

  awaited_handler(awaited<Results>* to, asio::cancellation_slot slot) : to_(to), slot_(slot) {}
  awaited_handler(awaited_handler&& other) noexcept
      : to_(std::exchange(other.to_, nullptr)), slot_(other.slot_) {}
  awaited_handler& operator=(awaited_handler&&) = delete;
  // An event loop that is destroyed drops its operations, and so the coroutines that wait for them.
  ~awaited_handler() {
    if (to_ != nullptr && to_->place.is_taken()) to_->place.drop();
  }

  asio::cancellation_slot get_cancellation_slot() const noexcept { return slot_; }
  template <class... Given>
  void operator()(Given&&... results) {
    awaited<Results>* const to = std::exchange(to_, nullptr);
    slot_.clear();  // the operation is over
    to->results.emplace(std::forward<Given>(results)...);
    to->place.resume();
  }

 private:
  awaited<Results>* to_;
  asio::cancellation_slot slot_;
};

// An operation that begins when it is awaited; if starting throws, it throws in the coroutine.
template <class Results, class Initiation, class... Arguments>
class operation {
 public:
  explicit operation(Initiation initiation, Arguments... arguments)
      : initiation_(std::move(initiation)), arguments_(std::move(arguments)...) {}

  static bool await_ready() noexcept { return false; }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> by) {
    auto& self = static_cast<asio_fiber&>(by.promise().of());
    try {
      std::apply(
          [&](auto&... arguments) {
            std::move(initiation_)(awaited_handler<Results>(&here_, self.on_stop()),
                                   std::move(arguments)...);
          },
          arguments_);
    } catch (...) {
      self.on_stop().clear();
      throw;
    }
    here_.place.take(self);
  }
  Results await_resume() { return std::move(*here_.results); }

 private:
  Initiation initiation_;
  std::tuple<Arguments...> arguments_;
  awaited<Results> here_;
};

}  // namespace detail

}  // namespace millrace

template <class... Results>
class boost::asio::async_result<millrace::no_throw_t, void(Results...)> {
 public:
  template <class Initiation, class... Arguments>
  static auto initiate(Initiation initiation, millrace::no_throw_t /*token*/,
                       Arguments... arguments) {
    return millrace::detail::operation<std::tuple<std::decay_t<Results>...>, Initiation,
                                       Arguments...>(std::move(initiation),
                                                     std::move(arguments)...);
  }
};

namespace millrace {

// A timer of the engine's clock.
class steady_timer : public asio::basic_waitable_timer<steady_clock> {
  using base = asio::basic_waitable_timer<steady_clock>;

 public:
  // A timer without an expiry: set one before waiting for it.
  explicit steady_timer(const asio::any_io_executor& executor) : base(executor) {}
  // A timer that expires at `when`.
  steady_timer(const asio::any_io_executor& executor, steady_clock::time_point when)
      : base(executor, steady_clock::firing_at(when)) {}
  // A timer that expires `time` from now.
  steady_timer(const asio::any_io_executor& executor, steady_clock::duration time)
      : steady_timer(executor, steady_clock::after(time)) {}

  // Sets the expiry and cancels the present waits. Returns the number of those.
  std::size_t expires_at(steady_clock::time_point when) {
    return base::expires_at(steady_clock::firing_at(when));
  }
  // Like expires_at(), `time` from now.
  std::size_t expires_after(steady_clock::duration time) {
    return expires_at(steady_clock::after(time));
  }
};

}  // namespace millrace
