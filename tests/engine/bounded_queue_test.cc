#include "engine/threads/bounded_queue.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace millrace {
namespace {

TEST(BoundedQueue, IsFirstInFirstOutAndBounded) {
  bounded_queue<int> q(4);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(q.try_push(i));
    EXPECT_FALSE(q.try_push(4));
    int got = -1;
    for (int i = 0; i < 4; ++i) {
      EXPECT_TRUE(q.try_pop(got));
      EXPECT_EQ(got, i);
    }
    EXPECT_FALSE(q.try_pop(got));
  }
}

TEST(BoundedQueue, ManyThreadsLoseAndDoubleNothing) {
  constexpr int producers = 3;
  constexpr int consumers = 3;
  constexpr int each = 20'000;
  bounded_queue<int> q(64);
  std::vector<std::atomic<int>> seen(producers * each);
  std::atomic<int> taken = 0;
  std::vector<std::thread> threads;
  for (int p = 0; p < producers; ++p) {
    threads.emplace_back([&, p] {
      for (int i = 0; i < each; ++i) {
        while (!q.try_push(p * each + i)) std::this_thread::yield();
      }
    });
  }
  for (int c = 0; c < consumers; ++c) {
    threads.emplace_back([&] {
      while (taken < producers * each) {
        int got = 0;
        if (!q.try_pop(got)) {
          std::this_thread::yield();
          continue;
        }
        ++seen[static_cast<std::size_t>(got)];
        ++taken;
      }
    });
  }
  for (auto& t : threads) t.join();
  for (const auto& s : seen) ASSERT_EQ(s, 1);
}

}  // namespace
}  // namespace millrace
