#pragma once

#include <coroutine>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

namespace millrace {

template <class T>
class awaitable;

// Unwinds a coroutine that was asked to stop. Catch it only to rethrow it.
class stopped_coroutine final : public std::exception {
 public:
  // A fixed text: it needs no memory.
  const char* what() const noexcept override { return "the coroutine was asked to stop"; }
};

namespace detail {
class frame;
}

// A chain of coroutines that await one another, from the spawned one to the one that runs or waits
// for an event. run() is a loop that continues with the coroutine awaited or returned to: any
// number of co_awaits takes the stack of one, with every compiler. One I/O thread unless stated.
class fiber {
 public:
  fiber() = default;
  virtual ~fiber() { destroy_frames(); }
  fiber(const fiber&) = delete;
  fiber& operator=(const fiber&) = delete;

  // Asks the coroutines to end: their next await throws `stopped_coroutine`, unless they are
  // uninterrupted. Idempotent.
  void stop();
  // Whether it was asked to end, and does not ignore that.
  bool is_stopped() const { return is_stopped_; }
  // Ignores stop() from now on, including an earlier one.
  void ignore_stops();

  // Resumes the waiting coroutine, up to its next wait. When all have ended, this may be destroyed
  // on return.
  void resume();
  // Destroys the suspended coroutines, innermost first.
  void drop() noexcept;

 protected:
  // Sets the first coroutine, which the first resume() begins.
  void begin_with(awaitable<void> work) noexcept;
  // Called last by resume(): all have ended and are destroyed; the first one threw this, or null.
  virtual void ended(std::exception_ptr thrown) noexcept = 0;
  // Stops the awaited operation.
  virtual void end_wait() noexcept = 0;
  // Called last by drop(). Not called by the destructor.
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

// `co_await this_fiber` returns the fiber without waiting, even if it was asked to stop.
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

// A coroutine that returns a T or throws. It begins when it is awaited, once; if destroyed before
// that, it never begins. It runs in the fiber, and so on the I/O thread, of its awaiter.
template <class T>
class [[nodiscard]] awaitable {
 public:
  using promise_type = detail::promise<T>;
  // The coroutine that it owns.
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
  // Begins the coroutine, and waits for what it returns or throws.
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

// The type of `this_fiber`: `co_await this_fiber` is the fiber of the coroutine. Never waits, never
// throws.
struct this_fiber_t : detail::asks_fiber {
  // The result of `co_await`. Lives as long as the coroutine.
  fiber& operator()(fiber& of) const noexcept { return of; }
};
// See this_fiber_t.
inline constexpr this_fiber_t this_fiber;

// While this lives, awaits of the fiber do not throw because it was asked to stop.
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

// A place where a coroutine waits until resume(). Allocates nothing. One coroutine at a time. It
// must outlive the wait, as a local variable of the coroutine does. A stop does not end the wait:
// the holder of the place must resume it. I/O thread only.
//
//   co_await place.wait();
class parking {
 public:
  parking() = default;
  parking(const parking&) = delete;
  parking& operator=(const parking&) = delete;

  // Whether a coroutine waits here.
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
  // Waits until resume(). Await it at once.
  awaiter wait() { return {*this}; }

 private:
  fiber* waiting_ = nullptr;
};

}  // namespace millrace
