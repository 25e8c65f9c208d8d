#include "engine/scope.h"

#include <boost/asio/multiple_exceptions.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/system/system_error.hpp>
#include <cstdlib>

#include "engine/standard_error.h"

namespace millrace {

bool is_stop(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const boost::system::system_error& e) {
    return e.code() == asio::error::operation_aborted;
  } catch (const asio::multiple_exceptions& e) {
    // Of `a || b` both have ended by it.
    return is_stop(e.first_exception());
  } catch (...) {
    return false;
  }
}

// A coroutine and what it needs to begin and to end: all of it is there when it is entered in the
// list. Asio's co_spawn allocates when the coroutine has ended, and where that fails nobody is
// told.
class scope::child final : public posted_call {
  using whole = awaitable<asio::detail::awaitable_thread_entry_point>;
  using thread = asio::detail::awaitable_thread<asio::any_io_executor>;

 public:
  explicit child(scope& of) : posted_call(of.executor_), of_(of) {}

  void prepare(child_list::iterator self, awaitable<void> work) {
    self_ = self;
    coroutine_.emplace(run_all(*self, std::move(work)), of_.executor_, cancel_.slot(),
                       asio::cancellation_state(cancel_.slot()));
  }
  // Runs the coroutine up to its first suspension, where this is its thread; else soon.
  void begin() {
    if (!is_at_home()) return post();
    thread begun(std::move(*coroutine_));
    coroutine_.reset();
    begun.launch();
    if (of_.stopped_) stop();
  }
  void stop() {
    asked_ = true;
    cancel_.emit(asio::cancellation_type::terminal);
  }
  // What it has thrown; null also for the exception by which it unwinds that was asked to end.
  std::exception_ptr failure() const {
    return thrown_ && asked_ && is_stop(thrown_) ? nullptr : thrown_;
  }

 private:
  // The child outlives its coroutine, for its signal must.
  static whole run_all(std::shared_ptr<child> self, awaitable<void> work) {
    try {
      co_await std::move(work);
    } catch (...) {
      self->thrown_ = std::current_exception();
    }
    self->post();  // once nothing of the coroutine is left
  }
  void run() override {
    if (coroutine_) return begin();
    of_.ended(self_);
  }

  scope& of_;
  asio::cancellation_signal cancel_;
  std::optional<thread> coroutine_;  // until it begins
  child_list::iterator self_;
  std::exception_ptr thrown_;
  bool asked_ = false;  // to end
};

scope::scope(asio::any_io_executor executor) : executor_(std::move(executor)) {}

scope::~scope() {
  if (!children_.empty()) {
    to_stderr("millrace: a scope was destroyed with {} coroutines running\n", children_.size());
    std::abort();
  }
}

std::shared_ptr<scope::child> scope::start(awaitable<void> work) {
  auto started = std::make_shared<child>(*this);
  children_.push_back(started);
  try {
    started->prepare(std::prev(children_.end()), std::move(work));
  } catch (...) {
    children_.pop_back();
    throw;
  }
  started->begin();
  return started;
}

void scope::spawn(awaitable<void> work) {
  start(std::move(work));
}

scope::task scope::spawn_stoppable(awaitable<void> work) {
  return task(start(std::move(work)));
}

void scope::ended(child_list::iterator which) {
  const auto last_reference = std::move(*which);
  children_.erase(which);
  auto thrown = last_reference->failure();
  if (thrown && !first_thrown_) {
    first_thrown_ = std::move(thrown);
    stop();
  }
  if (!children_.empty()) return;
  // The last that is done here: either may destroy the scope.
  if (joining_.is_taken()) return joining_.resume();
  if (when_empty_) when_empty_();
}

void scope::stop() {
  stopped_ = true;
  // None leaves the list here: that is a call of its own.
  for (const auto& c : children_) c->stop();
}

void scope::rethrow_first() {
  if (first_thrown_) std::rethrow_exception(std::exchange(first_thrown_, nullptr));
}

awaitable<void> scope::join() {
  co_await asio::this_coro::throw_if_cancelled(false);
  if (!children_.empty()) co_await joining_.wait();
  co_await asio::this_coro::throw_if_cancelled(true);
  rethrow_first();
}

void scope::task::stop() {
  if (const auto running = child_.lock()) running->stop();
  child_.reset();
}

namespace {

awaitable<void> end_other(awaitable<void> work, scope* both, std::size_t index,
                          std::optional<std::size_t>* first) {
  co_await std::move(work);
  if (!*first) *first = index;
  both->stop();
}

}  // namespace

awaitable<std::size_t> first_of(awaitable<void> a, awaitable<void> b) {
  scope both(co_await asio::this_coro::executor);
  std::optional<std::size_t> first;
  auto outer = (co_await asio::this_coro::cancellation_state).slot();
  if (outer.is_connected()) {
    outer.assign([&both](asio::cancellation_type /*any*/) { both.stop(); });
  }
  std::exception_ptr thrown;
  try {
    both.spawn(end_other(std::move(a), &both, 0, &first));
    both.spawn(end_other(std::move(b), &both, 1, &first));
  } catch (...) {
    thrown = std::current_exception();
    both.stop();
  }
  co_await asio::this_coro::throw_if_cancelled(false);
  if (!both.children_.empty()) co_await both.joining_.wait();
  co_await asio::this_coro::throw_if_cancelled(true);
  outer.clear();
  if (thrown) std::rethrow_exception(thrown);
  both.rethrow_first();
  // What is stopped may end as if it had what it waited for.
  const auto asked = (co_await asio::this_coro::cancellation_state).cancelled();
  if (!first || asked != asio::cancellation_type::none)
    throw boost::system::system_error(asio::error::operation_aborted);
  co_return *first;
}

awaitable<error> error_unless_stopped(std::exception_ptr thrown, std::string thrower) {
  const auto asked = (co_await asio::this_coro::cancellation_state).cancelled();
  if (asked != asio::cancellation_type::none && is_stop(thrown)) std::rethrow_exception(thrown);
  co_return error_of(thrown, thrower);
}

awaitable<std::optional<error>> failure_of(awaitable<void> work, std::string thrower) {
  std::exception_ptr thrown;
  try {
    co_await std::move(work);
  } catch (...) {
    thrown = std::current_exception();
  }
  if (!thrown) co_return std::nullopt;
  co_return co_await error_unless_stopped(std::move(thrown), std::move(thrower));
}

}  // namespace millrace
