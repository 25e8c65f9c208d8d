#include "tools/bench/load_bench.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

// Ten seconds of four decoding threads, whose consumer waited for a quarter of them.
load_bench_report load_report(double pool_busy, double pool_cpu, double waiting_input) {
  load_bench_report r;
  r.images = 500;
  r.seconds = 10;
  r.waited = 2.5;
  r.stats.pool_threads = 4;
  r.stats.pool_busy = pool_busy;
  r.stats.pool_cpu = pool_cpu;
  r.cpu_seconds = pool_cpu;
  r.stats.stages = {
      {.name = "decode_jpeg", .busy = 10 - waiting_input, .waiting_input = waiting_input}};
  return r;
}

TEST(LoadLimit, FollowsWhatWaited) {
  constexpr double unpaced = 0;
  EXPECT_EQ(limit_of(load_report(38, 38, 0.1), unpaced), load_limit::decoding);
  EXPECT_EQ(limit_of(load_report(2, 2, 8), unpaced), load_limit::reading);
  // Decoding that has its input in time is not limited by reading, however busy its threads are.
  EXPECT_EQ(limit_of(load_report(20, 19, 1), unpaced), load_limit::decoding);
}

TEST(LoadLimit, IsTheHostWhereOthersTakeItsCpus) {
  const auto r = load_report(38, 12, 0.1);
  EXPECT_EQ(limit_of(r, 0), load_limit::host);
  EXPECT_NEAR(r.pool_on_cpu(), 12.0 / 38, 1e-9);
  EXPECT_EQ(limit_of(load_report(20, 8, 1), 0), load_limit::host);
  // Threads that have a CPU whenever they have work, and are idle all the same.
  EXPECT_EQ(limit_of(load_report(11.6, 11, 1), 0), load_limit::host);
}

TEST(LoadLimit, IsTheConsumerWhereItGetsTheRateThatItAsksFor) {
  EXPECT_EQ(limit_of(load_report(2, 2, 8), 50), load_limit::consumer);
  EXPECT_EQ(limit_of(load_report(2, 2, 8), 60), load_limit::reading);
  auto fed = load_report(2, 2, 8);
  fed.waited = 0.1;
  EXPECT_EQ(limit_of(fed, 0), load_limit::consumer);
}

}  // namespace
}  // namespace millrace
