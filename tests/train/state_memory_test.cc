#include <gtest/gtest.h>

#include "engine/base/units.h"
#include "engine/host/host.h"
#include "pipeline/state/state.h"
#include "train/job/data.h"

namespace millrace {
namespace {

// Samples whose text is the longest there is of so many: none follows another one of its shard.
std::vector<origin> scattered(std::size_t count) {
  std::vector<origin> held;
  held.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto n = static_cast<std::int64_t>(i);
    held.push_back({.lane = n % 8,
                    .shard = n % 1000,
                    .offset = (std::int64_t{1} << 40) + n * 512,
                    .epoch = 3,
                    .position = (std::int64_t{1} << 30) + n});
  }
  return held;
}

TEST(StateMemory, WhatARunHoldsAtTheMostIsReadAgainUnderItsBudget) {
  const engine_options engine{.memory_bytes = 64_MiB};
  for (const std::size_t shuffle : {5000U, 100'000U}) {
    const train_options run{.batch_size = 512, .shuffle = shuffle};
    state saved;
    saved.hold("lane0/shuffle", scattered(run.shuffle));
    saved.hold(pending_record, scattered(512 * (static_cast<std::size_t>(run.prefetch) + 2)));
    const std::size_t allowed = state_bytes(run, engine);
    const auto again = state::from_json(saved.to_json(), allowed);
    ASSERT_TRUE(again) << again.error().message();
    EXPECT_EQ(*again, saved);
    // Ten times as many are not of this run.
    saved.hold("lane1/shuffle", scattered(10 * (run.shuffle + 10'000)));
    EXPECT_EQ(state::from_json(saved.to_json(), allowed).error().kind(), errc::too_large);
  }
}

TEST(StateMemory, ABudgetThatIsNotSetIsThatOfARun) {
  const train_options run;
  EXPECT_EQ(state_bytes(run, {}), state_bytes(run, {.memory_bytes = default_memory_bytes()}));
}

}  // namespace
}  // namespace millrace
