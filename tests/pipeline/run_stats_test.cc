#include "pipeline/run/run_stats.h"

#include <gtest/gtest.h>

#include "millrace/millrace.h"
#include "tests/support/text_shards.h"

namespace millrace {
namespace {

using RunStats = testing::text_shards;

TEST_F(RunStats, OfTwoSnapshotsAreWhatCameBetweenThem) {
  engine eng(testing::with_memory_store(store_));
  auto data = eng.run(shards(urls(2), {.lanes = 1, .epochs = 2}) | untar() | group_by_key());
  const auto epoch = [&] {
    std::uint64_t items = 0;
    while (data.next()) ++items;
    return items;
  };
  const std::uint64_t first = epoch();
  const run_stats before = data.stats();
  const std::uint64_t second = epoch();
  const run_stats after = data.stats();
  const run_stats found = after.since(before);
  ASSERT_GT(first, 0U);
  EXPECT_EQ(second, first);
  ASSERT_EQ(found.stages.size(), after.stages.size());
  const auto give = [](const run_stats& s) { return s.stages.back().items; };
  EXPECT_EQ(give(after), first + second);
  EXPECT_EQ(give(found), give(after) - give(before));
  EXPECT_EQ(found.stages.back().name, after.stages.back().name);
  EXPECT_EQ(found.sources.bytes, after.sources.bytes - before.sources.bytes);
  EXPECT_LE(found.seconds, after.seconds);
  EXPECT_GE(found.seconds, 0);
  for (const stage_stats& s : found.stages) {
    EXPECT_GE(s.busy, 0) << s.name;
    EXPECT_GE(s.waiting_input, 0) << s.name;
    EXPECT_GE(s.waiting_output, 0) << s.name;
  }
  // Of the same snapshot, nothing.
  const run_stats none = after.since(after);
  EXPECT_EQ(none.stages.back().items, 0U);
  EXPECT_EQ(none.sources.requests, 0U);
  EXPECT_EQ(none.seconds, 0);
}

}  // namespace
}  // namespace millrace
