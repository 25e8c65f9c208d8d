#include "engine/coroutines/scope.h"

#include <cstdlib>
#include <list>

#include "engine/coroutines/async.h"
#include "engine/coroutines/posted_call.h"
#include "engine/host/standard_error.h"

namespace millrace {

bool is_stop(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const stopped_coroutine&) {
    return true;
  } catch (...) {
    return false;
  }
}

struct scope::running_children {
  using list = std::list<std::shared_ptr<child>>;
  io_executor home;
  list all = {};
};

// A coroutine with everything it needs to begin and end, allocated before it enters the list.
class scope::child final : public posted_call, public asio_fiber {
 public:
  child(scope& of, awaitable<void> work)
      : posted_call(of.executor()), asio_fiber(of.executor()), of_(of) {
    begin_with(std::move(work));
  }

  // Runs the coroutine up to its first wait: now on its own thread, otherwise soon.
  void begin(running_children::list::iterator self) {
    self_ = self;
    if (is_at_home()) {
      run();
    } else {
      post();
    }
  }
  running_children::list::iterator self() const { return self_; }
  // Stops it even if it ignores stops at the moment.
  void ask_to_stop() {
    is_asked_ = true;
    stop();
  }
  // Its exception; null also for the one that unwinds a stopped coroutine.
  std::exception_ptr failure() const {
    return thrown_ && is_asked_ && is_stop(thrown_) ? nullptr : thrown_;
  }

 private:
  void run() override {
    if (has_ended_) return of_.ended(*this);
    resume();
    if (!has_ended_ && of_.stopped_) ask_to_stop();
  }
  void ended(std::exception_ptr thrown) noexcept override {
    thrown_ = std::move(thrown);
    has_ended_ = true;
    post();
  }

  scope& of_;
  running_children::list::iterator self_;
  std::exception_ptr thrown_;
  bool is_asked_ = false;
  bool has_ended_ = false;
};

scope::scope(const io_executor& home)
    : children_(std::make_unique<running_children>(running_children{home})) {}

const io_executor& scope::executor() const {
  return children_->home;
}

std::size_t scope::running() const {
  return children_->all.size();
}

scope::~scope() {
  if (!children_->all.empty()) {
    to_stderr("millrace: a scope was destroyed with {} coroutines running\n",
              children_->all.size());
    std::abort();
  }
}

std::shared_ptr<scope::child> scope::start(awaitable<void> work) {
  auto started = std::make_shared<child>(*this, std::move(work));
  children_->all.push_back(started);
  started->begin(std::prev(children_->all.end()));
  return started;
}

void scope::spawn(awaitable<void> work) {
  start(std::move(work));
}

scope::task scope::spawn_stoppable(awaitable<void> work) {
  return task(start(std::move(work)));
}

void scope::ended(const child& which) {
  const auto at = which.self();
  const auto last_reference = std::move(*at);
  children_->all.erase(at);
  auto thrown = last_reference->failure();
  if (thrown && !first_thrown_) {
    first_thrown_ = std::move(thrown);
    stop();
  }
  if (!children_->all.empty()) return;
  // The last action: either may destroy the scope.
  if (joining_.is_taken()) return joining_.resume();
  if (when_empty_) when_empty_();
}

void scope::stop() {
  stopped_ = true;
  // None leaves the list here: that happens in a separate call.
  for (const auto& c : children_->all) c->ask_to_stop();
}

void scope::rethrow_first() {
  if (first_thrown_) std::rethrow_exception(std::exchange(first_thrown_, nullptr));
}

awaitable<void> scope::join() {
  const uninterrupted here(co_await this_fiber);
  if (!children_->all.empty()) co_await joining_.wait();
  rethrow_first();
}

void scope::task::stop() {
  if (const auto running = child_.lock()) running->ask_to_stop();
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
  auto& self = static_cast<asio_fiber&>(co_await this_fiber);
  scope both(self.home());
  std::optional<std::size_t> first;
  self.on_stop().assign([&both](asio::cancellation_type /*any*/) { both.stop(); });
  std::exception_ptr thrown;
  try {
    both.spawn(end_other(std::move(a), &both, 0, &first));
    both.spawn(end_other(std::move(b), &both, 1, &first));
  } catch (...) {
    thrown = std::current_exception();
    both.stop();
  }
  {
    const uninterrupted here(self);
    if (!both.children_->all.empty()) co_await both.joining_.wait();
  }
  self.on_stop().clear();
  if (thrown) std::rethrow_exception(thrown);
  both.rethrow_first();
  // A stopped wait may end as if it had succeeded.
  if (!first || self.is_stopped()) throw stopped_coroutine();
  co_return *first;
}

awaitable<error> error_unless_stopped(std::exception_ptr thrown, std::string thrower) {
  if ((co_await this_fiber).is_stopped() && is_stop(thrown)) std::rethrow_exception(thrown);
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
