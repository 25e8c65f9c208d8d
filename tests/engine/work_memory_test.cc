#include "engine/memory/work_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <thread>

#include "engine/base/units.h"

namespace millrace {
namespace {

constexpr std::size_t unmetered = work_meter::free_bytes;

TEST(WorkMemory, SmallWorkTakesNothing) {
  work_memory memory(1_MiB);
  const work_memory_scope in(memory);
  const auto done = metered([&]() -> result<int> {
    EXPECT_TRUE(take_work_memory(unmetered));
    EXPECT_EQ(memory.in_use(), 0U);
    EXPECT_TRUE(take_work_memory(1));
    EXPECT_GT(memory.in_use(), 0U);
    return 7;
  });
  EXPECT_EQ(done.value(), 7);
  EXPECT_EQ(memory.in_use(), 0U);
  EXPECT_TRUE(take_work_memory(std::size_t{1} << 50));  // outside of any work nothing is counted
}

TEST(WorkMemory, WhatNeedsMoreThanTheLimitFailsAndSaysTheFigures) {
  work_memory memory(4_MiB);
  const work_memory_scope in(memory);
  const auto done = metered([&]() -> result<int> {
    if (!take_work_memory(9_MiB)) return error(errc::bad_image, "no memory");
    return 7;
  });
  EXPECT_EQ(done.error().kind(), errc::too_large);
  EXPECT_TRUE(done.error().is_skippable());
  EXPECT_NE(done.error().message().find("9.0 MiB"), std::string::npos) << done.error().message();
  EXPECT_NE(done.error().message().find("4.0 MiB"), std::string::npos) << done.error().message();
  // An overflow is none.
  const auto absurd = metered([&]() -> result<int> {
    for (int i = 0; i < 9; ++i) (void)take_work_memory(~std::size_t{0});
    return 7;
  });
  EXPECT_EQ(absurd.error().kind(), errc::too_large);
  EXPECT_EQ(memory.in_use(), 0U);
}

// Each piece fits by itself, and takes what it needs little by little: none fails, none waits for
// ever, and together they never hold more than there is.
TEST(WorkMemory, WorkThatFitsNeverFailsWhateverElseRuns) {
  work_memory memory(8_MiB);
  std::atomic<std::size_t> held = 0;
  std::atomic<bool> too_much = false;
  std::atomic<int> failed = 0;
  const auto work = [&](unsigned number) {
    const work_memory_scope in(memory);
    for (int round = 0; round < 12; ++round) {
      const std::size_t parts = 1 + (number + static_cast<unsigned>(round)) % 9;
      const auto done = metered([&]() -> result<int> {
        std::size_t mine = 0;
        bool fine = true;
        for (std::size_t i = 0; fine && i < parts; ++i) {
          fine = take_work_memory(1_MiB);
          if (!fine) break;
          mine += 1_MiB;
          if ((held += 1_MiB) > 8_MiB + 4 * unmetered) too_much = true;
          std::this_thread::yield();
        }
        held -= mine;
        if (!fine) return error(errc::bad_image, "no memory");
        return 1;
      });
      if (!done) ++failed;
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) threads.emplace_back(work, i * 3);
  for (auto& t : threads) t.join();
  EXPECT_EQ(failed, 0);
  EXPECT_FALSE(too_much);
  EXPECT_EQ(memory.in_use(), 0U);
}

TEST(WorkMemory, WhatIsThrownGivesItBack) {
  work_memory memory(8_MiB);
  const work_memory_scope in(memory);
  EXPECT_THROW(static_cast<void>(metered([&]() -> result<int> {
                 EXPECT_TRUE(take_work_memory(5_MiB));
                 throw std::runtime_error("no");
               })),
               std::runtime_error);
  EXPECT_EQ(memory.in_use(), 0U);
  EXPECT_EQ(work_meter::of_thread(), nullptr);
}

// Work within work is counted in it: it is all done again together.
TEST(WorkMemory, WorkWithinWorkIsAPartOfIt) {
  work_memory memory(8_MiB);
  const work_memory_scope in(memory);
  const auto inner = [&] {
    return metered([&]() -> result<int> {
      if (!take_work_memory(5_MiB)) return error(errc::bad_image, "no memory");
      return 1;
    });
  };
  const auto outer = metered([&]() -> result<int> {
    const auto first = inner();
    const auto second = inner();
    return first && second ? result<int>(2) : result<int>(error(errc::bad_image, "no memory"));
  });
  EXPECT_EQ(outer.error().kind(), errc::too_large);
  EXPECT_TRUE(inner());
}

}  // namespace
}  // namespace millrace
