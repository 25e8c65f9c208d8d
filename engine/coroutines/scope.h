#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/base/error.h"
#include "engine/coroutines/awaitable.h"

namespace millrace {

class io_executor;

// Owns coroutines: each one spawned here has ended when join() returns. The first that throws stops
// its siblings, and join() rethrows its exception; the exception that unwinds a stopped coroutine
// does not count. One I/O thread only.
//
// Spawn a coroutine that is a function with value parameters (or references to what outlives the
// scope), never a capturing lambda: captures die with the lambda object, not with the coroutine.
class scope {
 public:
  // For coroutines of the I/O thread `home`.
  explicit scope(const io_executor& home);
  // The scope must be empty: joined, or never used. Checked.
  ~scope();
  scope(const scope&) = delete;
  scope& operator=(const scope&) = delete;

  // Stops its coroutine when destroyed. The coroutine still ends within the scope.
  class task;
  // Like spawn(), with a handle that stops the coroutine.
  [[nodiscard]] task spawn_stoppable(awaitable<void> work);
  // Starts a coroutine, which runs up to its first wait before this returns. Throws std::bad_alloc
  // without memory for it, and then leaves the scope unchanged. Once started, a coroutine needs no
  // memory to end.
  void spawn(awaitable<void> work);

  // Asks every coroutine to end at its next suspension. Idempotent.
  void stop();
  // Whether stop() was called, or a coroutine threw.
  bool stopped() const { return stopped_; }
  // The first exception that was thrown; null while there is none.
  const std::exception_ptr& first_thrown() const { return first_thrown_; }
  // The number of coroutines that have not ended.
  std::size_t running() const;
  // The executor of its I/O thread.
  const io_executor& executor() const;

  // Waits for all, even if the awaiting coroutine is cancelled. One join at a time.
  awaitable<void> join();

  // Called on the I/O thread whenever the last coroutine has ended; throws nothing. It may destroy
  // the scope.
  void when_empty(std::function<void()> what) { when_empty_ = std::move(what); }

 private:
  class child;
  struct running_children;
  std::shared_ptr<child> start(awaitable<void> work);
  void ended(const child& which);
  void rethrow_first();
  friend awaitable<std::size_t> first_of(awaitable<void> a, awaitable<void> b);

  std::unique_ptr<running_children> children_;
  parking joining_;
  std::function<void()> when_empty_;
  std::exception_ptr first_thrown_;
  bool stopped_ = false;
};

// The handle of a coroutine of a scope, which may outlive both.
class scope::task {
 public:
  task() = default;
  task(task&&) noexcept = default;
  task& operator=(task&& other) noexcept {
    stop();
    child_ = std::move(other.child_);
    return *this;
  }
  ~task() { stop(); }
  // Asks the coroutine to end. Nothing if it has ended.
  void stop();

 private:
  friend class scope;
  explicit task(std::weak_ptr<child> c) : child_(std::move(c)) {}
  std::weak_ptr<child> child_;
};

// Waits until one of the two has ended, and returns which: 0 or 1. The other one is stopped, and
// has ended when this returns. Rethrows the first exception, and throws `stopped_coroutine` if the
// awaiting coroutine is stopped.
awaitable<std::size_t> first_of(awaitable<void> a, awaitable<void> b);

// True for the exception by which a stopped coroutine unwinds.
bool is_stop(const std::exception_ptr& thrown);

// Returns an exception as an error (error_of), but rethrows the one that unwinds a stopped
// coroutine.
awaitable<error> error_unless_stopped(std::exception_ptr thrown, std::string thrower);

// Awaits `work`, and returns its exception as an error in the same way; nullopt if it did not
// throw.
awaitable<std::optional<error>> failure_of(awaitable<void> work, std::string thrower);

}  // namespace millrace
