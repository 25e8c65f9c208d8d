#include "bench/tune.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

trial of(double mb_per_s, const std::string& from = "disk") {
  trial t;
  t.mb_per_s = mb_per_s;
  t.from = from;
  return t;
}

trial turns_of(std::initializer_list<double> rates, const std::string& from = "disk") {
  std::vector<trial> turns;
  for (const double r : rates) turns.push_back(of(r, from));
  return combined(turns);
}

TEST(Tune, ATrialIsItsTurnsMedianWithTheirSpread) {
  const trial t = turns_of({300, 100, 200});
  EXPECT_EQ(t.mb_per_s, 200);
  EXPECT_EQ(t.least_mb_per_s, 100);
  EXPECT_EQ(t.most_mb_per_s, 300);
  EXPECT_EQ(t.turns, 3);
  EXPECT_EQ(combined({of(1, "disk"), of(2, "page cache")}).from, "mixed");
}

TEST(Tune, NoiseAndOtherPlacesAreNoGain) {
  const trial before = turns_of({100, 110, 104});
  EXPECT_TRUE(gains(turns_of({120, 130, 125}), before));
  EXPECT_FALSE(gains(turns_of({109, 130, 125}), before));  // its worst turn is within the others
  EXPECT_FALSE(gains(turns_of({110.5, 107, 111}), turns_of({106, 106, 106})));  // less than 5 %
  EXPECT_FALSE(gains(turns_of({900, 910, 920}, "page cache"), before));
}

}  // namespace
}  // namespace millrace
