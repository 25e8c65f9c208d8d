#include <gtest/gtest.h>

#include "engine/base/units.h"
#include "io/disks/depth_controller.h"
#include "io/disks/disk.h"
#include "io/disks/extent_policy.h"

namespace millrace {
namespace {

TEST(DiskSpeed, ShareAndExtentAreOneEquation) {
  const disk_speed disk{.bytes_per_s = 200e6, .move_s = 0.007};
  // E = 19 r t gives 0.95 of the rate.
  EXPECT_NEAR(static_cast<double>(disk.extent_for(0.95)), 19 * 200e6 * 0.007, 10);
  for (const double share : {0.5, 0.9, 0.95, 0.99}) {
    EXPECT_NEAR(disk.share_at(disk.extent_for(share)), share, 1e-6);
  }
}

storage rotational(int spindles) {
  storage s;
  s.rotational = true;
  s.spindles = spindles;
  s.chunk_bytes = spindles > 1 ? 512_KiB : 0;
  return s;
}

// Extents of a disk whose move takes `move` seconds, and whose rate is then `rate`.
void teach(extent_controller& c, double rate, double move, const std::vector<std::size_t>& sizes) {
  for (int i = 0; i < 100; ++i) {
    for (const std::size_t size : sizes) c.observed(size, move + static_cast<double>(size) / rate);
  }
}

TEST(ExtentController, BeginsWithWhatAUsualDiskNeeds) {
  EXPECT_GE(extent_controller(rotational(1), 0).wanted(), 16_MiB);
  EXPECT_NEAR(static_cast<double>(extent_controller(rotational(4), 0).wanted()),
              4.0 * static_cast<double>(extent_controller(rotational(1), 0).wanted()), 4e6);
}

TEST(ExtentController, LearnsFromExtentsOfDifferentSizes) {
  extent_controller c(rotational(1), 0);
  teach(c, 100e6, 0.020, {16_MiB, 32_MiB, 48_MiB});
  EXPECT_NEAR(c.speed().bytes_per_s, 100e6, 10e6);
  EXPECT_NEAR(c.speed().move_s, 0.020, 0.006);
}

TEST(ExtentController, ExtentsOfOneSizeDoNotLeadItAstray) {
  extent_controller c(rotational(1), 0);
  teach(c, 200e6, 0.007, {38_MiB});
  EXPECT_NEAR(c.speed().bytes_per_s, 200e6, 10e6);
  EXPECT_NEAR(c.speed().move_s, 0.007, 0.002);
}

TEST(ExtentController, ShortExtentsTeachNothing) {
  extent_controller c(rotational(1), 0);
  const std::size_t before = c.wanted();
  for (const std::size_t size : {std::size_t{0}, std::size_t{1'000'000}}) c.observed(size, 100);
  EXPECT_EQ(c.wanted(), before);
}

TEST(ExtentController, OneAccidentChangesNothing) {
  extent_controller c(rotational(1), 0);
  const std::size_t before = c.wanted();
  c.observed(64_MiB, 20);
  EXPECT_EQ(c.wanted(), before);
  teach(c, 200e6, 0.007, {32_MiB, 64_MiB});
  c.observed(64_MiB, 20);
  EXPECT_EQ(c.wanted(), before);
}

TEST(ExtentController, GrowsWithTheSeekCost) {
  extent_controller c(rotational(1), 0);
  const std::size_t before = c.wanted();
  teach(c, 200e6, 0.020, {16_MiB, 64_MiB});
  EXPECT_GT(c.wanted(), before * 2);
}

TEST(ExtentController, NeverBelowAChunkOnEachSpindle) {
  storage wide = rotational(64);
  wide.chunk_bytes = 1_MiB;
  extent_controller c(wide, 0);
  teach(c, 200e6, 0.0002, {5_MiB, 100_MiB});
  EXPECT_GE(c.wanted(), 64_MiB);
}

TEST(ExtentController, TheFirstTurnsAreShort) {
  extent_controller c(rotational(1), 0);
  EXPECT_LT(c.next(), c.wanted() / 2);
  teach(c, 200e6, 0.007, {38_MiB});
  EXPECT_EQ(c.next(), c.wanted());
}

TEST(ExtentController, KeepsWhatTheUserHasSet) {
  extent_controller c(rotational(1), 5_MiB);
  teach(c, 200e6, 0.020, {16_MiB, 32_MiB});
  EXPECT_EQ(c.wanted(), 5_MiB);
}

// A device whose rate at a depth is `rate(depth)`; runs windows until `reads` have ended.
template <class Rate>
int depth_after(depth_controller& c, int reads, Rate rate) {
  double now = 0;
  for (int i = 0; i < reads; ++i) {
    const double bytes_per_s = rate(c.depth());
    now += 1e6 / bytes_per_s;
    c.completed(1'000'000, now, c.depth() * 1e6 / bytes_per_s, true);
  }
  return c.depth();
}

TEST(DepthController, GrowsToWhereMoreGainsNothing) {
  // Doubles up to 16 at once, then flat.
  depth_controller c(0, 128);
  const int depth = depth_after(c, 2000, [](int d) { return 1e8 * std::min(d, 16); });
  EXPECT_GE(depth, 16);
  EXPECT_LE(depth, 32);
}

TEST(DepthController, StaysLowWhereOneReadIsEnough) {
  depth_controller c(0, 128);
  EXPECT_LE(depth_after(c, 2000, [](int) { return 1e9; }), 4);
}

TEST(DepthController, FollowsADeviceThatGetsSlowWhenCrowded) {
  depth_controller c(0, 128);
  const int depth = depth_after(c, 5000, [](int d) { return d <= 8 ? 1e8 * d : 4e8; });
  EXPECT_LE(depth, 16);
  EXPECT_GE(depth, 4);
}

TEST(DepthController, ShrinksWhenLatencyDoublesForNothing) {
  depth_controller c(0, 128);
  depth_after(c, 2000, [](int d) { return 1e8 * std::min(d, 16); });
  const int before = c.depth();
  // Another process took half of the device.
  double now = 1000;
  for (int i = 0; i < 4 * before + 20; ++i) {
    now += 1e6 / 4e8;
    c.completed(1'000'000, now, 3 * before * 1e6 / 1.6e9, true);
  }
  EXPECT_LE(c.depth(), before);
}

TEST(DepthController, LearnsNothingWhileTheConsumerIsWhatLimits) {
  depth_controller c(0, 128);
  double now = 0;
  for (int i = 0; i < 2000; ++i) c.completed(1'000'000, now += 0.01, 0.001, false);
  EXPECT_EQ(c.depth(), 4);
}

TEST(DepthController, KeepsWhatTheUserHasSet) {
  depth_controller c(7, 128);
  EXPECT_EQ(depth_after(c, 2000, [](int d) { return 1e8 * d; }), 7);
}

TEST(GatePermits, OneOnRotationalDisksElseNoneUnlessSet) {
  source_options options;
  EXPECT_EQ(gate_permits(rotational(1), options), 1);
  storage flash;
  EXPECT_EQ(gate_permits(flash, options), 0);
  options.serialize = 3;
  EXPECT_EQ(gate_permits(flash, options), 3);
  options.serialize = 0;
  EXPECT_EQ(gate_permits(rotational(1), options), 0);
  options = {};
  options.spindles = 4;
  EXPECT_EQ(gate_permits(with_overrides(flash, options), options), 1);
  EXPECT_EQ(with_overrides(flash, options).spindles, 4);
}

}  // namespace
}  // namespace millrace
