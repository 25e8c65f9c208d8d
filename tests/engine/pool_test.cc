#include <gtest/gtest.h>

#include <map>
#include <thread>
#include <vector>

#include "engine/threads/offload.h"
#include "engine/threads/pool_controller.h"
#include "engine/threads/runtime.h"
#include "engine/threads/worker_pool.h"
#include "tests/support/spine.h"

namespace millrace {
namespace {

// A pool and a consumer that needs so many cores: with fewer threads it waits for what is missing.
class PoolController : public ::testing::Test {
 protected:
  // Part of the looks at which the consumer waited.
  double starving(pool_controller& c, double cores, double seconds) {
    int starved = 0;
    int looks = 0;
    for (double t = 0; t < seconds; t += look_s, ++looks) {
      const double given = std::min<double>(cores, c.threads());
      const double waited = 1 - given / cores;
      starved += waited > 0.02 ? 1 : 0;
      c.next({.seconds = look_s, .waited = waited * look_s, .busy = given * look_s});
    }
    return static_cast<double>(starved) / looks;
  }
  static constexpr double look_s = 0.1;
};

TEST_F(PoolController, FeedsTheConsumerByTheFewestThreads) {
  for (const auto& [cores, expected] :
       std::vector<std::pair<double, int>>{{0.01, 1}, {0.5, 1}, {1.5, 2}, {3.2, 4}, {12, 14}}) {
    pool_controller c(16);
    EXPECT_EQ(starving(c, cores, 60), 0) << cores;
    EXPECT_EQ(c.threads(), expected) << cores;
  }
}

TEST_F(PoolController, UsesAllWhereEvenTheyAreTooFew) {
  pool_controller c(4);
  starving(c, 9, 60);
  EXPECT_EQ(c.threads(), 4);
}

TEST_F(PoolController, FollowsAConsumerThatBecomesFasterWithinASecond) {
  pool_controller c(32);
  starving(c, 1, 60);
  EXPECT_EQ(c.threads(), 2);
  starving(c, 20, 1);
  EXPECT_GE(c.threads(), 20);
  starving(c, 20, 60);
  EXPECT_LE(c.threads(), 23);
}

// Where the consumer waits although threads are idle, more of them would not help.
TEST_F(PoolController, DoesNotGrowForWhatIsNotItsFault) {
  pool_controller c(16);
  for (int i = 0; i < 600; ++i) c.next({.seconds = 0.1, .waited = 0.08, .busy = 0.12});
  EXPECT_EQ(c.threads(), 2);
}

// A consumer that takes in bursts starves although the threads are not always busy. It is not made
// to starve again and again.
TEST_F(PoolController, DoesNotGoBackAndForth) {
  pool_controller c(8);
  int starved = 0;
  for (int i = 0; i < 6000; ++i) {
    constexpr double busy = 2.6;
    const bool starves = c.threads() < 4;
    starved += starves ? 1 : 0;
    c.next({.seconds = 0.1, .waited = starves ? 0.01 : 0, .busy = 0.1 * busy});
  }
  EXPECT_LT(starved, 60);
}

awaitable<std::thread::id> thread_of(runtime* threads) {
  const auto work = [] { return std::this_thread::get_id(); };
  co_return co_await offload(threads->io(0), threads->cpu(), work);
}

TEST(WorkerPool, OnlyTheThreadsInUseTakeWork) {
  runtime threads({.cpu_threads = 4});
  worker_pool& pool = threads.cpu();
  pool.use(1);
  EXPECT_EQ(pool.used(), 1);
  std::map<std::thread::id, int> tasks;
  for (int i = 0; i < 200; ++i) ++tasks[testing::run_on(threads.io(0), thread_of(&threads))];
  // Those that waited for work already each take one task at most.
  int many = 0;
  for (const auto& [id, count] : tasks) many += count > 1 ? 1 : 0;
  EXPECT_EQ(many, 1);
  pool.use(99);
  EXPECT_EQ(pool.used(), 4);
  EXPECT_GT(pool.busy_seconds(), 0);
  EXPECT_GT(pool.cpu_seconds(), 0);
}

}  // namespace
}  // namespace millrace
