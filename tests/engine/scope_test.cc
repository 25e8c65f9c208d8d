#include "engine/coroutines/scope.h"
#include "engine/coroutines/async.h"
#include "engine/coroutines/condition.h"
#include "engine/threads/io_thread.h"

#include <gtest/gtest.h>

#include "engine/coroutines/stop.h"
#include "engine/coroutines/timer.h"
#include "engine/threads/runtime.h"
#include "tests/support/spine.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using testing::run_on;
using testing::settle;

struct on_exit {
  int* count;
  ~on_exit() { ++*count; }
};

awaitable<void> wait_for_ever(int* ended) {
  const on_exit counted{ended};
  condition never(co_await this_executor);
  for (;;) co_await never.wait();
}

awaitable<void> throw_at_once() {
  co_await asio::post(co_await this_executor, no_throw);
  throw failure(error(errc::cut, "the first failure"));
}

class Scope : public ::testing::Test {
 protected:
  runtime threads_{{.cpu_threads = 1}};
  io_thread& io_ = threads_.io(0);
  scope scope_{io_.executor()};
  int ended_ = 0;
};

TEST_F(Scope, TheFirstFailureStopsTheSiblingsAndIsThrownByJoin) {
  asio::post(io_.context(), [&] {
    scope_.spawn(wait_for_ever(&ended_));
    scope_.spawn(wait_for_ever(&ended_));
    scope_.spawn(throw_at_once());
  });
  settle(io_);
  try {
    run_on(io_, scope_.join());
    FAIL() << "nothing was thrown";
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::cut);
  }
  EXPECT_EQ(ended_, 2);
}

TEST_F(Scope, StopEndsAllAndIsNoFailure) {
  asio::post(io_.context(), [&] {
    scope_.spawn(wait_for_ever(&ended_));
    scope_.stop();
    scope_.spawn(wait_for_ever(&ended_));  // also one that comes late
  });
  settle(io_);
  run_on(io_, scope_.join());
  EXPECT_EQ(ended_, 2);
}

TEST_F(Scope, ATaskEndsWithItsHandle) {
  asio::post(io_.context(), [&] {
    auto task = scope_.spawn_stoppable(wait_for_ever(&ended_));
    scope_.spawn(wait_for_ever(&ended_));
  });
  settle(io_);
  EXPECT_EQ(ended_, 1);
  asio::post(io_.context(), [&] { scope_.stop(); });
  run_on(io_, scope_.join());
  EXPECT_EQ(ended_, 2);
}

awaitable<void> wait_for_either() {
  co_await first_of(sleep_for(1h), sleep_for(2h));
}

TEST_F(Scope, AStopOfWhoWaitsForOneOfTwoIsAStop) {
  asio::post(io_.context(), [&] {
    auto task = scope_.spawn_stoppable(wait_for_either());
    scope_.spawn(wait_for_ever(&ended_));
    asio::post(io_.context(), [stopped = std::make_shared<scope::task>(std::move(task))] {});
  });
  settle(io_);
  EXPECT_EQ(ended_, 0);  // its sibling goes on
  asio::post(io_.context(), [&] { scope_.stop(); });
  EXPECT_NO_THROW(run_on(io_, scope_.join()));
}

TEST(ScopeDeathTest, DestroyedWithCoroutinesItEndsTheProgram) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        asio::io_context context;
        int ended = 0;
        const auto doomed = std::make_unique<scope>(context.get_executor());
        doomed->spawn(wait_for_ever(&ended));
      },
      "a scope was destroyed with 1 coroutines running");
}

awaitable<result<int>> answer_after(steady_clock::duration time) {
  co_await sleep_for(time);
  co_return 42;
}

TEST(Deadline, TellsTimeoutAnswerAndStopApart) {
  runtime threads({.cpu_threads = 1});
  const error late(errc::timed_out, "too late");
  EXPECT_EQ(run_on(threads.io(0), with_deadline(answer_after(0ms), 1h, late)).value(), 42);
  const auto timed_out = run_on(threads.io(0), with_deadline(answer_after(1h), 1ms, late));
  ASSERT_FALSE(timed_out);
  EXPECT_EQ(timed_out.error().kind(), errc::timed_out);
}

TEST(OnStop, RunsOnTheExecutorWhoeverAsks) {
  runtime threads({.cpu_threads = 1});
  std::stop_source source;
  std::promise<std::thread::id> ran_on;
  const on_stop registration(source.get_token(), threads.io(0).executor(),
                             [&] { ran_on.set_value(std::this_thread::get_id()); });
  source.request_stop();
  EXPECT_NE(ran_on.get_future().get(), std::this_thread::get_id());
}

}  // namespace
}  // namespace millrace
