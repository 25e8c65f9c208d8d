#include "pipeline/plan/ledger.h"

#include <gtest/gtest.h>

#include "pipeline/run/run_stats.h"

namespace millrace {
namespace {

// Each count as `n` times its number. The binding does not compile if a member is added: visit it
// in ledger::each_count(), too.
ledger counted_to(std::uint64_t n) {
  ledger out;
  auto& [delivered, dropped, lost, damaged, skipped, epochs, incomplete_shards, lost_bytes,
         not_files, without_key, meta_files, left_out, without_companion, companions_alone,
         first_skipped] = out;
  std::uint64_t number = 0;
  for (auto* count :
       {&delivered, &dropped, &lost, &damaged, &incomplete_shards, &lost_bytes, &not_files,
        &without_key, &meta_files, &left_out, &without_companion, &companions_alone}) {
    *count = n * ++number;
  }
  skipped = {{errc::truncated, 2 * n}};
  epochs = {{.passed = n}};
  first_skipped = {std::to_string(n)};
  return out;
}

TEST(Ledger, CountsOfTwoRunsAreAdded) {
  ledger both = counted_to(1);
  both.add(counted_to(10));
  ledger expected = counted_to(11);
  expected.epochs = {{.passed = 1}, {.passed = 10}};
  expected.first_skipped = {"1", "10"};
  EXPECT_EQ(both, expected);
}

TEST(Ledger, MessagesOfBothRunsAreTheFirstHundred) {
  ledger both;
  for (int i = 0; i < 90; ++i) both.first_skipped.push_back("before");
  ledger later;
  for (int i = 0; i < 90; ++i) later.first_skipped.push_back("after");
  both.add(later);
  EXPECT_EQ(both.first_skipped.size(), 100U);
  EXPECT_EQ(both.first_skipped.back(), "after");
}

TEST(RunStatsOfTwo, FiguresOfTwoRunsAreAddedAndThoseOfThePoolAreTheLaterOnes) {
  run_stats first{.stages = {{.name = "untar", .items = 3, .bytes = 30, .busy = 1}},
                  .seconds = 5,
                  .spine_cpu = 2,
                  .pool_threads = 2,
                  .pool_busy = 4};
  run_stats second{.stages = {{.name = "untar", .items = 4, .bytes = 40, .busy = 2}},
                   .seconds = 7,
                   .spine_cpu = 3,
                   .pool_threads = 2,
                   .pool_busy = 9};
  first.sources.bytes = 100;
  second.sources.bytes = 11;
  run_stats none;
  none.add(first);
  none.add(second);
  ASSERT_EQ(none.stages.size(), 1U);
  EXPECT_EQ(none.stages[0].items, 7U);
  EXPECT_EQ(none.stages[0].bytes, 70U);
  EXPECT_EQ(none.stages[0].busy, 3);
  EXPECT_EQ(none.sources.bytes, 111U);
  EXPECT_EQ(none.seconds, 12);
  EXPECT_EQ(none.spine_cpu, 5);
  EXPECT_EQ(none.pool_busy, 9);
}

}  // namespace
}  // namespace millrace
