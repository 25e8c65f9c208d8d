#pragma once

#include <boost/asio/cancellation_signal.hpp>
#include <exception>
#include <list>
#include <memory>

#include "engine/async.h"

namespace millrace {

// Owns coroutines: each one spawned here has ended when join() returns. The first that throws stops
// its siblings, and join() throws what it threw. One I/O thread only.
//
// Spawn a coroutine that is a function with value parameters (or references to what outlives the
// scope), never a capturing lambda: captures die with the lambda object, not with the coroutine.
class scope {
 public:
  explicit scope(asio::any_io_executor executor);
  // The scope must be empty: joined, or never used. Checked.
  ~scope();
  scope(const scope&) = delete;
  scope& operator=(const scope&) = delete;

  // Stops its coroutine when destroyed. The coroutine still ends within the scope.
  class task;
  [[nodiscard]] task spawn_stoppable(awaitable<void> work);
  void spawn(awaitable<void> work);

  // Asks every coroutine to end at its next suspension. Idempotent.
  void stop();
  bool stopped() const { return stopped_; }
  std::size_t running() const { return children_.size(); }
  const asio::any_io_executor& executor() const { return executor_; }

  // Waits for all, whether or not the awaiting coroutine is itself cancelled meanwhile.
  awaitable<void> join();

 private:
  struct child {
    asio::cancellation_signal cancel;
  };
  using child_list = std::list<std::shared_ptr<child>>;
  std::shared_ptr<child> start(awaitable<void> work);
  void ended(child_list::iterator which, std::exception_ptr thrown);

  asio::any_io_executor executor_;
  child_list children_;
  condition one_ended_;
  std::exception_ptr first_thrown_;
  bool stopped_ = false;
};

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
  void stop();

 private:
  friend class scope;
  explicit task(std::weak_ptr<child> c) : child_(std::move(c)) {}
  std::weak_ptr<child> child_;
};

// True for the exception by which a stopped coroutine unwinds.
bool is_stop(const std::exception_ptr& thrown);

}  // namespace millrace
