#include "engine/base/random.h"

#include <gtest/gtest.h>

#include <set>

namespace millrace {
namespace {

// Known answers of the Random123 distribution (kat_vectors, philox4x32 10).
TEST(Philox, GivesThePublishedKnownAnswers) {
  using block = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox4x32({ones, ones, ones, ones}, {ones, ones}),
            (block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomStream, GoesOnFromItsPosition) {
  random_stream a(7, purpose::shuffle, 1, 2);
  for (int i = 0; i < 11; ++i) a.next_u32();
  random_stream b(7, purpose::shuffle, 1, 2);
  b.seek(a.position());
  for (int i = 0; i < 9; ++i) EXPECT_EQ(a.next_u32(), b.next_u32());
}

TEST(RandomStream, DiffersByEverythingThatNamesIt) {
  std::set<std::uint32_t> firsts;
  for (const std::uint64_t seed : {0U, 1U}) {
    for (const purpose what : {purpose::shuffle, purpose::augment}) {
      for (const std::uint64_t a : {0U, 1U}) {
        for (const std::uint64_t b : {0U, 1U})
          firsts.insert(random_stream(seed, what, a, b).next_u32());
      }
    }
  }
  EXPECT_EQ(firsts.size(), 16U);
}

TEST(RandomStream, BelowIsInRangeAndEvenlySpread) {
  random_stream r(1, purpose::shuffle);
  std::array<int, 7> counts{};
  for (int i = 0; i < 70'000; ++i) ++counts.at(r.below(7));
  for (const int c : counts) EXPECT_NEAR(c, 10'000, 500);
  for (int i = 0; i < 1000; ++i) {
    const double u = r.uniform();
    EXPECT_GE(u, 0.0);
    EXPECT_LT(u, 1.0);
  }
}

}  // namespace
}  // namespace millrace
