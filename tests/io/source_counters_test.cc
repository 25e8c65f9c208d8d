#include "io/source_counters.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace millrace {
namespace {

// Each figure with another value, from `first` on.
source_counters counted_from(int first) {
  source_counters out;
  source_counters::each([&]<class T>(std::string_view, T source_counters::* figure, auto) {
    out.*figure = static_cast<T>(first++);
  });
  return out;
}

// Programs read the reports by these names.
TEST(SourceCounters, HaveTheNamesThatReportsHave) {
  std::vector<std::string> names;
  source_counters::each([&](std::string_view name, auto, auto) { names.emplace_back(name); });
  const std::vector<std::string> expected{"bytes_read",
                                          "requests",
                                          "retries",
                                          "resumed",
                                          "stalls",
                                          "hedges",
                                          "hedges_won",
                                          "wasted_bytes",
                                          "direct_bytes",
                                          "seeks_avoided",
                                          "cache_hits",
                                          "cache_misses",
                                          "cache_healed",
                                          "gate_wait_seconds",
                                          "memory_wait_seconds",
                                          "first_byte_wait_seconds",
                                          "most_depth"};
  EXPECT_EQ(names, expected);
}

TEST(SourceCounters, AreSummedButForTheGreatestOnes) {
  source_counters all = counted_from(100);
  all.reads.add(1);
  source_counters other = counted_from(1000);
  other.reads.add(2);
  other.first_bytes.add(3);
  all.add(other);
  int n = 0;
  source_counters::each([&](std::string_view name, auto figure, source_counters::total how) {
    const int expected = how == source_counters::total::sum ? 1100 + 2 * n : 1000 + n;
    EXPECT_EQ(static_cast<double>(all.*figure), expected) << name;
    ++n;
  });
  EXPECT_EQ(all.reads.count(), 2U);
  EXPECT_EQ(all.reads.most(), 2);
  EXPECT_EQ(all.first_bytes.count(), 1U);
  // The other way around, too.
  other.add(counted_from(100));
  EXPECT_EQ(other.most_depth, all.most_depth);
}

TEST(SourceCounters, SinceASnapshotAreWhatCameAfterIt) {
  source_counters before = counted_from(100);
  before.reads.add(5);
  source_counters now = before;
  now.add(counted_from(1));
  for (int i = 0; i < 3; ++i) now.reads.add(0.001);
  const source_counters found = now.since(before);
  source_counters::each([&](std::string_view name, auto figure, source_counters::total how) {
    const bool is_sum = how == source_counters::total::sum;
    EXPECT_EQ(found.*figure, is_sum ? counted_from(1).*figure : now.*figure) << name;
  });
  EXPECT_EQ(found.reads.count(), 3U);
  EXPECT_LT(found.reads.percentile(0.99), 0.002);  // without the one before
  EXPECT_EQ(found.reads.most(), 5);                // of the whole time
  EXPECT_EQ(now.since(now).reads.percentile(0.5), 0);
}

}  // namespace
}  // namespace millrace
