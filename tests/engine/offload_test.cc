#include "engine/threads/offload.h"
#include "engine/coroutines/async.h"
#include "engine/threads/io_thread.h"

#include <gtest/gtest.h>

#include <set>

#include "engine/coroutines/scope.h"
#include "engine/threads/runtime.h"
#include "tests/support/spine.h"

namespace millrace {
namespace {

using testing::run_on;

struct crossed {
  std::thread::id before, there, after;
};

awaitable<crossed> cross(runtime* threads) {
  crossed c;
  c.before = std::this_thread::get_id();
  const auto work = [] { return std::this_thread::get_id(); };
  c.there = co_await offload(threads->io(0), threads->cpu(), work);
  c.after = std::this_thread::get_id();
  co_return c;
}

TEST(Offload, RunsInThePoolAndComesBack) {
  runtime threads({.cpu_threads = 2});
  const crossed c = run_on(threads.io(0), cross(&threads));
  EXPECT_NE(c.before, c.there);
  EXPECT_EQ(c.before, c.after);
}

awaitable<bool> cross_and_throw(runtime* threads) {
  const auto before = std::this_thread::get_id();
  const auto work = []() -> int { throw failure(error(errc::bad_image, "bad")); };
  bool caught = false;
  try {
    co_await offload(threads->io(0), threads->cpu(), work);
  } catch (const failure&) {
    caught = std::this_thread::get_id() == before;
  }
  co_return caught;
}

TEST(Offload, ComesBackWithWhatWasThrown) {
  runtime threads({.cpu_threads = 1});
  EXPECT_TRUE(run_on(threads.io(0), cross_and_throw(&threads)));
}

awaitable<void> count(runtime* threads, std::atomic<int>* done) {
  const auto work = [done] { done->fetch_add(1, std::memory_order_relaxed); };
  co_await offload(threads->io(0), threads->cpu(), work);
}

// More than may be away at once, from one I/O thread: the rest waits, and none is lost.
TEST(Offload, NoTaskIsLostWhenThereAreMoreThanMayBeAway) {
  runtime threads({.cpu_threads = 4});
  std::atomic<int> done = 0;
  constexpr int all = io_thread::max_tasks + 2000;
  scope tasks(threads.io(0).executor());
  std::promise<void> spawned;
  asio::post(threads.io(0).context(), [&] {
    for (int i = 0; i < all; ++i) tasks.spawn(count(&threads, &done));
    spawned.set_value();
  });
  spawned.get_future().get();
  run_on(threads.io(0), tasks.join());
  EXPECT_EQ(done, all);
}

awaitable<void> wait_in_pool(runtime* threads, std::shared_future<void> go, bool* returned) {
  const auto work = [go] { go.wait(); };
  co_await offload(threads->io(0), threads->cpu(), work);
  *returned = true;
}

TEST(Offload, AStopWaitsForTheWorkThatIsUnderWay) {
  runtime threads({.cpu_threads = 1});
  std::promise<void> go;
  bool returned = false;
  scope tasks(threads.io(0).executor());
  asio::post(threads.io(0).context(),
             [&] { tasks.spawn(wait_in_pool(&threads, go.get_future().share(), &returned)); });
  testing::settle(threads.io(0));
  asio::post(threads.io(0).context(), [&] { tasks.stop(); });
  testing::settle(threads.io(0));
  EXPECT_FALSE(returned);
  go.set_value();
  run_on(threads.io(0), tasks.join());
  EXPECT_TRUE(returned);
}

}  // namespace
}  // namespace millrace
