#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "bench/rotational/spindle.h"

namespace millrace::rotational {
namespace {

constexpr std::uint64_t KiB = 1024;

// Serves all that is pending; when the last part ends.
double serve_all(spindle& s) {
  double end = 0;
  while (const auto served = s.serve()) end = served->end;
  return end;
}

TEST(Spindle, OneReaderGetsTheNominalRate) {
  const disk_parameters disk;
  spindle s(disk, scheduling::fifo);
  const std::uint64_t total = 128 * KiB * KiB;
  for (std::uint64_t at = 0; at < total; at += 128 * KiB)
    s.add({.position = at, .size = 128 * KiB});
  EXPECT_NEAR(static_cast<double>(total) / serve_all(s), disk.rate, 0.02 * disk.rate);
}

TEST(Spindle, RandomReadsCostWhatTheFormulaSays) {
  const disk_parameters disk;
  spindle s(disk, scheduling::fifo);
  std::mt19937_64 random(1);
  constexpr int reads = 20'000;
  const auto tracks = static_cast<std::uint64_t>(disk.stroke) / (128 * KiB);
  for (int i = 0; i < reads; ++i) {
    s.add({.position = random() % tracks * 128 * KiB, .size = 128 * KiB});
  }
  const double each = disk.mean_seek + disk.turn / 2 + 128 * KiB / disk.rate;
  EXPECT_NEAR(serve_all(s) / reads, each, 0.01 * each);
}

TEST(Spindle, AShortGapAheadIsReadThrough) {
  const disk_parameters disk;
  spindle s(disk, scheduling::fifo);
  s.add({.position = 0, .size = 4 * KiB});
  s.add({.position = 68 * KiB, .size = 4 * KiB});
  s.add({.position = 60 * KiB, .size = 4 * KiB});  // behind the head
  EXPECT_FALSE(s.serve()->sought);
  const auto second = s.serve();
  EXPECT_FALSE(second->sought);
  EXPECT_NEAR(second->end - second->begin, 68 * KiB / disk.rate, 1e-9);
  EXPECT_TRUE(s.serve()->sought);
}

TEST(Spindle, TheElevatorSweepsUpward) {
  spindle s({}, scheduling::elevator);
  for (const std::uint64_t place : {500U, 100U, 900U, 300U}) {
    s.add({.position = place * 1'000'000, .size = KiB, .request = place});
  }
  std::vector<std::uint64_t> order;
  while (const auto served = s.serve()) {
    order.push_back(served->what.request);
    if (order.size() == 2) s.add({.position = 50'000'000, .size = KiB, .request = 50});
  }
  EXPECT_EQ(order, (std::vector<std::uint64_t>{100, 300, 500, 900, 50}));
}

TEST(Spindle, FifoKeepsTheOrderOfArrival) {
  spindle s({}, scheduling::fifo);
  for (const std::uint64_t place : {500U, 100U, 900U}) {
    s.add({.position = place * 1'000'000, .size = KiB, .request = place});
  }
  EXPECT_EQ(s.serve()->what.request, 500U);
  EXPECT_EQ(s.serve()->what.request, 100U);
  EXPECT_EQ(s.serve()->what.request, 900U);
}

TEST(Spindle, APartThatComesLateBeginsWhenItCame) {
  spindle s({}, scheduling::fifo);
  s.add({.position = 0, .size = KiB, .arrival = 5});
  EXPECT_EQ(s.serve()->begin, 5);
}

TEST(Stripe, ConsecutiveUnitsLieOnConsecutiveSpindles) {
  const stripe raid{.spindles = 3, .unit = 10};
  const auto pieces = raid.split(5, 62);
  ASSERT_EQ(pieces.size(), 3U);
  // [5,10) and [30,40) and [60,67) lie in a row on the first spindle.
  EXPECT_EQ(pieces[0].spindle, 0);
  EXPECT_EQ(pieces[0].position, 5U);
  EXPECT_EQ(pieces[0].size, 5U + 10 + 7);
  EXPECT_EQ(pieces[1].spindle, 1);
  EXPECT_EQ(pieces[1].position, 0U);
  EXPECT_EQ(pieces[1].size, 20U);
  EXPECT_EQ(pieces[2].size, 20U);
}

}  // namespace
}  // namespace millrace::rotational
