#include "engine/scope.h"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/system/system_error.hpp>
#include <cstdio>
#include <cstdlib>

namespace millrace {

bool is_stop(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const boost::system::system_error& e) {
    return e.code() == asio::error::operation_aborted;
  } catch (...) {
    return false;
  }
}

scope::scope(asio::any_io_executor executor)
    : executor_(std::move(executor)), one_ended_(executor_) {}

scope::~scope() {
  if (!children_.empty()) {
    std::fprintf(stderr, "millrace: a scope was destroyed with %zu coroutines running\n",
                 children_.size());
    std::abort();
  }
}

std::shared_ptr<scope::child> scope::start(awaitable<void> work) {
  children_.push_back(std::make_shared<child>());
  const auto self = std::prev(children_.end());
  auto started = *self;
  asio::co_spawn(
      executor_, std::move(work),
      asio::bind_cancellation_slot(started->cancel.slot(), [this, self](std::exception_ptr thrown) {
        ended(self, std::move(thrown));
      }));
  return started;
}

void scope::spawn(awaitable<void> work) {
  const auto started = start(std::move(work));
  if (stopped_) {
    // co_spawn has run the coroutine up to its first suspension, or has queued it.
    asio::post(executor_, [started] { started->cancel.emit(asio::cancellation_type::terminal); });
  }
}

scope::task scope::spawn_stoppable(awaitable<void> work) {
  const auto started = start(std::move(work));
  if (stopped_) {
    asio::post(executor_, [started] { started->cancel.emit(asio::cancellation_type::terminal); });
  }
  return task(started);
}

void scope::ended(child_list::iterator which, std::exception_ptr thrown) {
  // The child lives on until here so that its signal outlives the coroutine.
  const auto last_reference = std::move(*which);
  children_.erase(which);
  if (thrown && !is_stop(thrown) && !first_thrown_) {
    first_thrown_ = std::move(thrown);
    stop();
  }
  one_ended_.notify_all();
}

void scope::stop() {
  stopped_ = true;
  // Emitting may end a child at once, which changes the list.
  const std::vector<std::shared_ptr<child>> all(children_.begin(), children_.end());
  for (const auto& c : all) c->cancel.emit(asio::cancellation_type::terminal);
}

awaitable<void> scope::join() {
  co_await asio::this_coro::throw_if_cancelled(false);
  while (!children_.empty()) co_await one_ended_.wait();
  co_await asio::this_coro::throw_if_cancelled(true);
  if (first_thrown_) std::rethrow_exception(std::exchange(first_thrown_, nullptr));
}

void scope::task::stop() {
  if (const auto running = child_.lock()) running->cancel.emit(asio::cancellation_type::terminal);
  child_.reset();
}

}  // namespace millrace
