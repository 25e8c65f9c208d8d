#include "engine/coroutines/shared_call.h"

#include <gtest/gtest.h>

#include "engine/coroutines/scope.h"
#include "engine/threads/io_thread.h"
#include "engine/threads/runtime.h"
#include "tests/support/spine.h"

namespace millrace {
namespace {

using testing::run_on;
using testing::settle;

class SharedCall : public ::testing::Test {
 protected:
  // Answers with the number of calls, or fails, once it is let go.
  awaitable<result<int>> make() {
    ++calls_;
    while (!may_end_) co_await changed_.wait();
    if (fails_) co_return error(errc::not_allowed, "no token");
    co_return calls_;
  }
  awaitable<void> ask() {
    auto answer = co_await shared_([this] { return make(); });
    answers_.push_back(std::move(answer));
  }
  scope::task start() {
    return run_on(io_, [](SharedCall* t) -> awaitable<scope::task> {
      co_return t->tasks_.spawn_stoppable(t->ask());
    }(this));
  }
  void let_go() {
    asio::post(io_.context(), [&] {
      may_end_ = true;
      changed_.notify_all();
    });
    settle(io_);
    run_on(io_, tasks_.join());
  }

  runtime threads_{{.cpu_threads = 1}};
  io_thread& io_ = threads_.io(0);
  condition changed_{io_};
  shared_call<int> shared_;
  scope tasks_{io_.executor()};
  std::vector<result<int>> answers_;
  int calls_ = 0;
  bool may_end_ = false;
  bool fails_ = false;
};

TEST_F(SharedCall, OneIsMadeForAllThatAskMeanwhile) {
  std::vector<scope::task> asking;
  for (int i = 0; i < 5; ++i) asking.push_back(start());
  settle(io_);
  EXPECT_EQ(calls_, 1);
  let_go();
  ASSERT_EQ(answers_.size(), 5U);
  for (const auto& answer : answers_) EXPECT_EQ(answer.value(), 1);
  const auto later = start();
  run_on(io_, tasks_.join());
  EXPECT_EQ(answers_.back().value(), 2);  // nothing is kept
}

TEST_F(SharedCall, AllHaveItsError) {
  fails_ = true;
  std::vector<scope::task> asking;
  for (int i = 0; i < 5; ++i) asking.push_back(start());
  settle(io_);
  let_go();
  EXPECT_EQ(calls_, 1);
  ASSERT_EQ(answers_.size(), 5U);
  for (const auto& answer : answers_) EXPECT_EQ(answer.error().kind(), errc::not_allowed);
}

TEST_F(SharedCall, IsMadeAgainIfItsCallerIsStopped) {
  std::vector<scope::task> asking;
  for (int i = 0; i < 3; ++i) asking.push_back(start());
  settle(io_);
  asio::post(io_.context(), [&] { asking[1].stop(); });  // waits for another's
  settle(io_);
  EXPECT_EQ(calls_, 1);
  asio::post(io_.context(), [&] { asking[0].stop(); });  // makes it
  settle(io_);
  EXPECT_EQ(calls_, 2);
  let_go();
  ASSERT_EQ(answers_.size(), 1U);
  EXPECT_EQ(answers_[0].value(), 2);
}

}  // namespace
}  // namespace millrace
