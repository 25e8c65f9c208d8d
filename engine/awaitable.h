#pragma once

#include <coroutine>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

namespace millrace {

template <class T>
class awaitable;

// By which a coroutine unwinds that was asked to stop. Do not catch it for good.
class stopped_coroutine final : public std::exception {
 public:
  const char* what() const noexcept override { return "the coroutine was asked to stop"; }
};

namespace detail {
class frame;
}

// The coroutines that await one another: from the one that was spawned to the one that runs, or
// that waits for what no coroutine does. Where one awaits another, or returns to it, run() goes on
// with that one in a loop: any number of co_awaits takes the stack of one, with every compiler.
// One I/O thread, but where it says otherwise.
class fiber {
 public:
  fiber() = default;
  virtual ~fiber() { destroy_frames(); }
  fiber(const fiber&) = delete;
  fiber& operator=(const fiber&) = delete;

  // Asks the coroutines to end: whatever they await next throws `stopped_coroutine`, unless they
  // are uninterrupted. Idempotent.
  void stop();
  bool is_stopped() const { return is_stopped_; }
  // From now on stop() is as if nobody had asked, or did.
  void ignore_stops();

  // Goes on with the coroutine that waits, up to the next wait. When all have ended, this may be
  // destroyed on return.
  void resume();
  // Destroys the coroutines where they wait, the one that was awaited last first.
  void drop() noexcept;

 protected:
  // The first coroutine. It begins by the first call of resume().
  void begin_with(awaitable<void> work) noexcept;
  // All have ended and are destroyed; the first one has thrown this. The last call of resume().
  virtual void ended(std::exception_ptr thrown) noexcept = 0;
  // stop() for what is waited for.
  virtual void end_wait() noexcept = 0;
  // After drop(): the last call, and whoever destroys this meant to. Not called by the destructor.
  virtual void dropped() noexcept {}

 private:
  friend class detail::frame;
  friend class parking;
  friend class uninterrupted;

  void check_stop() const {
    if (is_stopped_ && is_interruptible_) throw stopped_coroutine();
  }
  void destroy_frames() noexcept;

  detail::frame* first_ = nullptr;
  detail::frame* last_ = nullptr;
  bool is_running_ = false;
  bool is_waiting_ = false;
  bool is_stopped_ = false;
  bool is_interruptible_ = true;
  bool ignores_stops_ = false;
};

namespace detail {

// What is told of the fiber without a wait, also when it was asked to stop: `co_await this_fiber`.
struct asks_fiber {};

// A coroutine of a fiber, with its promise.
class frame {
 public:
  frame() = default;
  frame(const frame&) = delete;
  frame& operator=(const frame&) = delete;

  static std::suspend_always initial_suspend() noexcept { return {}; }
  auto final_suspend() noexcept {
    struct back_to_caller {
      frame* ended;
      static bool await_ready() noexcept { return false; }
      void await_suspend(std::coroutine_handle<> /*of*/) const noexcept {
        ended->of_->last_ = ended->caller_;
      }
      static void await_resume() noexcept {}
    };
    return back_to_caller{this};
  }
  void unhandled_exception() noexcept { thrown_ = std::current_exception(); }

  template <class Awaited>
  decltype(auto) await_transform(Awaited&& what) const {
    if constexpr (std::is_base_of_v<asks_fiber, std::remove_cvref_t<Awaited>>) {
      struct at_once {
        fiber& of;
        std::remove_cvref_t<Awaited> asked;
        static bool await_ready() noexcept { return true; }
        static void await_suspend(std::coroutine_handle<> /*by*/) noexcept {}
        decltype(auto) await_resume() const { return asked(of); }
      };
      return at_once{*of_, what};
    } else {
      of_->check_stop();
      return std::forward<Awaited>(what);
    }
  }

  // `caller`, of a fiber, awaits this one.
  void enter_from(frame& caller) noexcept {
    caller_ = &caller;
    of_ = caller.of_;
    of_->last_ = this;
  }
  fiber& of() const { return *of_; }

 protected:
  void is_at(std::coroutine_handle<> here) noexcept { here_ = here; }
  void rethrow() {
    if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
  }

 private:
  friend class millrace::fiber;

  std::coroutine_handle<> here_;
  fiber* of_ = nullptr;
  frame* caller_ = nullptr;
  std::exception_ptr thrown_;
};

template <class T>
class promise final : public frame {
 public:
  awaitable<T> get_return_object() noexcept;
  template <class U = T>
  void return_value(U&& value) {
    value_.emplace(std::forward<U>(value));
  }
  T take() {
    rethrow();
    return std::move(*value_);
  }

 private:
  std::optional<T> value_;
};

template <>
class promise<void> final : public frame {
 public:
  awaitable<void> get_return_object() noexcept;
  static void return_void() noexcept {}
  void take() { rethrow(); }
};

}  // namespace detail

// A coroutine that gives a T, or throws. It begins when it is awaited, once; destroyed before that,
// it never does. It runs in the fiber, and so on the I/O thread, of the one that awaits it.
template <class T>
class [[nodiscard]] awaitable {
 public:
  using promise_type = detail::promise<T>;
  using handle = std::coroutine_handle<promise_type>;

  awaitable(awaitable&& other) noexcept : frame_(std::exchange(other.frame_, nullptr)) {}
  awaitable& operator=(awaitable&& other) noexcept {
    std::swap(frame_, other.frame_);
    return *this;
  }
  ~awaitable() {
    if (frame_) frame_.destroy();
  }

  struct awaiter {
    handle frame;
    static bool await_ready() noexcept { return false; }
    template <class Promise>
    void await_suspend(std::coroutine_handle<Promise> by) const noexcept {
      frame.promise().enter_from(by.promise());
    }
    T await_resume() const { return frame.promise().take(); }
  };
  awaiter operator co_await() && noexcept { return {frame_}; }

 private:
  friend promise_type;
  friend class fiber;
  explicit awaitable(handle frame) noexcept : frame_(frame) {}

  handle frame_;
};

namespace detail {

template <class T>
awaitable<T> promise<T>::get_return_object() noexcept {
  const auto here = std::coroutine_handle<promise>::from_promise(*this);
  is_at(here);
  return awaitable<T>(here);
}

inline awaitable<void> promise<void>::get_return_object() noexcept {
  const auto here = std::coroutine_handle<promise>::from_promise(*this);
  is_at(here);
  return awaitable<void>(here);
}

}  // namespace detail

// `co_await this_fiber`: the fiber that the coroutine is of. Never waits, never throws.
struct this_fiber_t : detail::asks_fiber {
  fiber& operator()(fiber& of) const noexcept { return of; }
};
inline constexpr this_fiber_t this_fiber;

// As long as this lives, what the fiber awaits does not throw because it was asked to stop.
class uninterrupted {
 public:
  explicit uninterrupted(fiber& of) noexcept
      : of_(of), was_interruptible_(std::exchange(of.is_interruptible_, false)) {}
  ~uninterrupted() { of_.is_interruptible_ = was_interruptible_; }
  uninterrupted(const uninterrupted&) = delete;
  uninterrupted& operator=(const uninterrupted&) = delete;

 private:
  fiber& of_;
  bool was_interruptible_;
};

// A place where a coroutine waits until resume(), without memory of its own. One coroutine at a
// time. It must outlive the wait, as a local variable of the coroutine does. The wait does not end
// by a stop: whoever holds the place must resume it. I/O thread only.
//
//   co_await place.wait();
class parking {
 public:
  parking() = default;
  parking(const parking&) = delete;
  parking& operator=(const parking&) = delete;

  bool is_taken() const { return waiting_ != nullptr; }
  // Runs the coroutine here, up to its next wait: it may have destroyed this when it returns.
  void resume() { std::exchange(waiting_, nullptr)->resume(); }
  // Destroys the coroutines of its fiber instead.
  void drop() { std::exchange(waiting_, nullptr)->drop(); }
  // From a co_await that suspends a coroutine of this fiber.
  void take(fiber& of) noexcept {
    waiting_ = &of;
    of.is_waiting_ = true;
  }

  struct awaiter {
    parking& at;
    static bool await_ready() noexcept { return false; }
    template <class Promise>
    void await_suspend(std::coroutine_handle<Promise> by) const noexcept {
      at.take(by.promise().of());
    }
    static void await_resume() noexcept {}
  };
  awaiter wait() { return {*this}; }

 private:
  fiber* waiting_ = nullptr;
};

}  // namespace millrace
