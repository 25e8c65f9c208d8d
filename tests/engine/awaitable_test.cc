#include "engine/coroutines/awaitable.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/coroutines/spawn_on.h"
#include "engine/threads/runtime.h"
#include "tests/support/spine.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using testing::run_on;

constexpr int many = 1'000'000;  // of the frames of one would overflow any stack

class Awaitable : public ::testing::Test {
 protected:
  runtime threads_{{.cpu_threads = 1}};
  io_thread& io_ = threads_.io(0);
};

awaitable<int> next_of(int i) {
  co_return i + 1;
}
awaitable<int> count_to(int n) {
  int i = 0;
  while (i < n) i = co_await next_of(i);
  co_return i;
}

TEST_F(Awaitable, AMillionOneAfterTheOtherTakeTheStackOfOne) {
  EXPECT_EQ(run_on(io_, count_to(many)), many);
}

awaitable<void> throw_unless(bool good) {
  if (!good) throw std::runtime_error("thrown by what is awaited");
  co_return;
}
awaitable<int> count_thrown(int n) {
  int thrown = 0;
  for (int i = 0; i < n; ++i) {
    try {
      co_await throw_unless(i % 2 == 0);
    } catch (const std::runtime_error&) {
      ++thrown;
    }
  }
  co_return thrown;
}

TEST_F(Awaitable, WhatIsThrownReachesWhoeverAwaits) {
  EXPECT_EQ(run_on(io_, count_thrown(100)), 50);
  EXPECT_THROW(run_on(io_, throw_unless(false)), std::runtime_error);
}

// Says in a list that it is gone.
struct leaver {
  std::vector<std::string>* to;
  std::string name;
  ~leaver() { to->push_back(name); }
};
awaitable<void> inner(std::vector<std::string>* gone, parking* at) {
  const leaver here{gone, "inner"};
  co_await at->wait();
}
awaitable<void> outer(std::vector<std::string>* gone, parking* at) {
  const leaver here{gone, "outer"};
  co_await inner(gone, at);
  gone->push_back("went on");
}

TEST(AwaitableAlone, IfNobodyAwaitsItItNeverBegins) {
  std::vector<std::string> gone;
  parking at;
  {
    const auto never = outer(&gone, &at);
  }
  EXPECT_TRUE(gone.empty());
}

class counted_fiber final : public fiber {
 public:
  explicit counted_fiber(awaitable<void> work) { begin_with(std::move(work)); }
  int ends = 0;
  int stops = 0;
  std::exception_ptr thrown;

 private:
  void ended(std::exception_ptr why) noexcept override {
    ++ends;
    thrown = std::move(why);
  }
  void end_wait() noexcept override { ++stops; }
};

TEST(Fiber, WhatIsDroppedIsDestroyedFromTheInside) {
  std::vector<std::string> gone;
  parking at;
  counted_fiber waits(outer(&gone, &at));
  waits.resume();
  ASSERT_TRUE(at.is_taken());
  at.drop();
  EXPECT_EQ(gone, (std::vector<std::string>{"inner", "outer"}));
  EXPECT_EQ(waits.ends, 0);
}

TEST(Fiber, EndsWhenItsFirstCoroutineHasEnded) {
  std::vector<std::string> gone;
  parking at;
  counted_fiber waits(outer(&gone, &at));
  waits.resume();
  EXPECT_EQ(waits.ends, 0);
  at.resume();
  EXPECT_EQ(gone, (std::vector<std::string>{"inner", "went on", "outer"}));
  EXPECT_EQ(waits.ends, 1);
  EXPECT_FALSE(waits.thrown);
}

// What it waits for may come before it has begun to wait.
awaitable<void> wait_for_what_is_there(parking* at, std::vector<std::string>* said) {
  struct at_once {
    parking* place;
    static bool await_ready() { return false; }
    void await_suspend(std::coroutine_handle<detail::promise<void>> by) const {
      place->take(by.promise().of());
      place->resume();
    }
    static void await_resume() {}
  };
  for (int i = 0; i < many; ++i) co_await at_once{at};
  said->emplace_back("through");
}

TEST(Fiber, AWaitThatIsOverAtOnceTakesNoStack) {
  std::vector<std::string> said;
  parking at;
  counted_fiber waits(wait_for_what_is_there(&at, &said));
  waits.resume();
  EXPECT_EQ(waits.ends, 1);
  EXPECT_EQ(said, std::vector<std::string>{"through"});
}

enum class heeds : std::uint8_t { stops, none_for_a_while, none_any_more };
awaitable<void> await_two(parking* at, heeds what, std::vector<std::string>* said) {
  if (what == heeds::none_any_more) (co_await this_fiber).ignore_stops();
  {
    std::optional<uninterrupted> here;
    if (what == heeds::none_for_a_while) here.emplace(co_await this_fiber);
    co_await at->wait();
    co_await throw_unless(true);
    said->emplace_back("first");
  }
  co_await throw_unless(true);
  said->emplace_back("second");
}

TEST(Fiber, AStopIsThrownByWhatIsAwaitedNext) {
  struct {
    heeds what;
    std::vector<std::string> said;
    bool is_stopped;
  } const cases[] = {{heeds::stops, {}, true},
                     {heeds::none_for_a_while, {"first"}, true},
                     {heeds::none_any_more, {"first", "second"}, false}};
  for (const auto& c : cases) {
    std::vector<std::string> said;
    parking at;
    counted_fiber waits(await_two(&at, c.what, &said));
    waits.resume();
    waits.stop();
    EXPECT_EQ(waits.is_stopped(), c.is_stopped);
    EXPECT_EQ(waits.stops, c.what == heeds::none_any_more ? 0 : 1);
    EXPECT_TRUE(at.is_taken()) << "a parked coroutine does not heed stops";
    at.resume();
    EXPECT_EQ(said, c.said);
    EXPECT_EQ(waits.thrown != nullptr, c.is_stopped);
  }
}

// An operation that cannot start says so where it is awaited.
struct cannot_start {
  template <class Handler>
  void operator()(Handler&& /*handler*/) const {
    throw std::bad_alloc();
  }
};
awaitable<bool> await_what_cannot_start() {
  try {
    co_await asio::async_initiate<const no_throw_t&, void()>(cannot_start(), no_throw);
  } catch (const std::bad_alloc&) {
    co_return true;
  }
  co_return false;
}

TEST_F(Awaitable, AnOperationWithoutMemoryThrowsInTheCoroutine) {
  EXPECT_TRUE(run_on(io_, await_what_cannot_start()));
}

awaitable<void> sleep_in(std::vector<std::string>* gone) {
  const leaver here{gone, "sleeper"};
  steady_timer timer(co_await this_executor, 1h);
  co_await timer.async_wait(no_throw);
}

TEST(AwaitableAlone, AnEventLoopThatIsDestroyedDropsWhatWaitsThere) {
  std::vector<std::string> gone;
  std::future<void> answer;
  {
    asio::io_context loop;
    answer = spawn_on(loop.get_executor(), sleep_in(&gone));
    loop.poll();
    EXPECT_TRUE(gone.empty());
  }
  EXPECT_EQ(gone, std::vector<std::string>{"sleeper"});
  EXPECT_THROW(answer.get(), std::future_error);
}

}  // namespace
}  // namespace millrace
