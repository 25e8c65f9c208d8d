#include "tools/bench/http_bench.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

// Ten seconds of four readers.
http_bench_report http_report(std::uint64_t objects, std::uint64_t stalls, double stalled_s) {
  http_bench_report r;
  r.connections = 4;
  r.bytes = 1'000'000;
  r.objects = objects;
  r.seconds = 10;
  r.cpu_seconds = 0.1;
  r.counters.stalls = stalls;
  r.stalled_s = stalled_s;
  return r;
}

TEST(HttpLimit, IsTheServerWhereItStalls) {
  EXPECT_EQ(http_report(0, 6, 1).limit(8).find("the server: 6 stalls"), 0U);
  EXPECT_EQ(http_report(50, 20, 20).limit(8).find("the server: 20 stalls"), 0U);
  EXPECT_EQ(http_report(5000, 1, 1).limit(8), "the link, or the server's sending rate");
  EXPECT_EQ(http_report(0, 0, 0).limit(8), "the link, or the server's sending rate");
}

}  // namespace
}  // namespace millrace
