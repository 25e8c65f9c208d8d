#include "engine/coroutines/channel.h"

#include <gtest/gtest.h>

#include <numeric>

#include "engine/coroutines/scope.h"
#include "engine/threads/io_thread.h"
#include "engine/threads/runtime.h"
#include "tests/support/spine.h"

namespace millrace {
namespace {

using testing::run_on;
using testing::settle;

awaitable<void> push_all(channel<int>* to, int n, int* refused) {
  for (int i = 0; i < n; ++i) {
    const auto taken = co_await to->push(i);
    if (!taken || !*taken) {
      ++*refused;
      co_return;
    }
  }
  to->close();
}

awaitable<void> pop_all(channel<int>* from, std::vector<int>* to, std::optional<error>* failed) {
  for (;;) {
    auto item = co_await from->pop();
    if (!item) {
      *failed = item.error();
      co_return;
    }
    if (!*item) co_return;
    to->push_back(**item);
  }
}

class Channel : public ::testing::Test {
 protected:
  runtime threads_{{.cpu_threads = 1}};
  io_thread& io_ = threads_.io(0);
  channel<int> channel_{io_.executor(), 3};
  scope tasks_{io_.executor()};
  std::vector<int> got_;
  std::optional<error> failed_;
  int refused_ = 0;
};

TEST_F(Channel, CarriesEverythingInOrderThroughASmallQueue) {
  asio::post(io_.context(), [&] {
    tasks_.spawn(push_all(&channel_, 1000, &refused_));
    tasks_.spawn(pop_all(&channel_, &got_, &failed_));
  });
  settle(io_);
  run_on(io_, tasks_.join());
  std::vector<int> all(1000);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(got_, all);
}

TEST_F(Channel, HoldsNoMoreThanItsCapacity) {
  asio::post(io_.context(), [&] { tasks_.spawn(push_all(&channel_, 10, &refused_)); });
  settle(io_);
  EXPECT_EQ(channel_.size(), 3U);
  asio::post(io_.context(), [&] { tasks_.stop(); });
  run_on(io_, tasks_.join());
}

TEST_F(Channel, CloseLetsWhatIsQueuedOutAndRefusesMore) {
  asio::post(io_.context(), [&] { tasks_.spawn(push_all(&channel_, 10, &refused_)); });
  settle(io_);
  asio::post(io_.context(), [&] {
    channel_.close();  // the fourth push is waiting
    tasks_.spawn(pop_all(&channel_, &got_, &failed_));
  });
  settle(io_);
  run_on(io_, tasks_.join());
  EXPECT_EQ(refused_, 1);
  EXPECT_EQ(got_, (std::vector{0, 1, 2}));
  EXPECT_FALSE(failed_);
}

TEST_F(Channel, FailReachesBothSides) {
  channel<int> other(io_.executor(), 1);
  asio::post(io_.context(), [&] {
    tasks_.spawn(push_all(&channel_, 10, &refused_));
    tasks_.spawn(pop_all(&other, &got_, &failed_));
  });
  settle(io_);
  asio::post(io_.context(), [&] {
    channel_.fail(error(errc::cut, "cut"));
    other.fail(error(errc::cut, "cut"));
  });
  settle(io_);
  run_on(io_, tasks_.join());
  EXPECT_EQ(refused_, 1);
  ASSERT_TRUE(failed_);
  EXPECT_EQ(failed_->kind(), errc::cut);
}

}  // namespace
}  // namespace millrace
