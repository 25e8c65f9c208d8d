#include "pipeline/wids/samplers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "engine/base/error.h"

namespace millrace {
namespace {

using list = std::vector<std::int64_t>;

template <class S>
list all(S sequence) {
  list out;
  while (const auto i = sequence.next()) out.push_back(*i);
  return out;
}

list shuffled_ten(std::int64_t seed) {
  list ten(10);
  std::iota(ten.begin(), ten.end(), 0);
  python_random(seed).shuffle(std::span(ten));
  return ten;
}

// Printed by CPython 3.11: random.Random(s).shuffle(list(range(10))), .random(), .getrandbits().
TEST(PythonRandom, GivesPythonsNumbers) {
  EXPECT_EQ(shuffled_ten(0), (list{7, 8, 1, 5, 3, 4, 2, 0, 9, 6}));
  EXPECT_EQ(shuffled_ten(1289738273), (list{7, 8, 2, 1, 4, 0, 9, 3, 6, 5}));
  EXPECT_DOUBLE_EQ(python_random(0).random(), 0.8444218515250481);
  EXPECT_DOUBLE_EQ(python_random(-7).random(), python_random(7).random());
  EXPECT_DOUBLE_EQ(python_random(std::int64_t{1} << 40).random(), 0.1036394562812375);
  EXPECT_EQ(python_random(5).getrandbits(64), 4712128852136459333U);
}

// The output of wids 0.2.111 (epoch 0, then epoch 1).
TEST(WidsSamplers, DistributedChunked) {
  const auto rank = [](std::int64_t n, std::int64_t replicas, std::int64_t chunk, std::int64_t r,
                       std::int64_t epoch) {
    return all(
        distributed_chunked_sampler{.samples = n, .replicas = replicas, .rank = r, .chunk = chunk}
            .epoch(epoch));
  };
  EXPECT_EQ(rank(10, 3, 2, 0, 0), (list{0, 1, 2, 3}));
  EXPECT_EQ(rank(10, 3, 2, 0, 1), (list{0, 1, 3, 2}));
  EXPECT_EQ(rank(10, 3, 2, 1, 0), (list{4, 5, 6, 7}));
  EXPECT_EQ(rank(10, 3, 2, 1, 1), (list{4, 5, 7, 6}));
  EXPECT_EQ(rank(10, 3, 2, 2, 0), (list{8, 9}));
  EXPECT_EQ(rank(10, 3, 2, 2, 1), (list{8, 9}));
  EXPECT_EQ(rank(10, 4, 3, 0, 0), (list{0, 2, 1}));
  EXPECT_EQ(rank(10, 4, 3, 1, 0), (list{3, 5, 4}));
  EXPECT_EQ(rank(10, 4, 3, 2, 0), (list{6, 8, 7}));
  EXPECT_EQ(rank(10, 4, 3, 3, 0), (list{9}));
  EXPECT_EQ(rank(5, 4, 2, 0, 0), (list{0, 1}));
  EXPECT_EQ(rank(5, 4, 2, 2, 0), (list{4}));
  EXPECT_EQ(rank(5, 4, 2, 3, 0), (list{}));
  distributed_chunked_sampler s{.samples = 12, .replicas = 2, .chunk = 3, .shuffle_first = true};
  EXPECT_EQ(all(s.epoch(0)), (list{2, 0, 1, 3, 5, 4}));
  EXPECT_EQ(all(s.epoch(1)), (list{2, 0, 1, 4, 3, 5}));
  s.rank = 1;
  EXPECT_EQ(all(s.epoch(0)), (list{8, 6, 7, 9, 11, 10}));
  EXPECT_EQ(all(s.epoch(1)), (list{8, 6, 7, 10, 9, 11}));
  s = {.samples = 9, .replicas = 2, .chunk = 4, .seed = 7};
  EXPECT_EQ(all(s.epoch(0)), (list{3, 1, 0, 2, 4}));
  EXPECT_EQ(all(s.epoch(1)), (list{0, 1, 3, 2, 4}));
  s.rank = 1;
  EXPECT_EQ(all(s.epoch(0)), (list{8, 6, 5, 7}));
  EXPECT_EQ(all(s.epoch(1)), (list{5, 8, 6, 7}));
  s = {.samples = 10, .replicas = 2, .rank = 1, .chunk = 4, .shuffle = false};
  EXPECT_EQ(all(s.epoch(0)), (list{5, 6, 7, 8, 9}));
}

TEST(WidsSamplers, ShardList) {
  shard_list_sampler s{.lengths = {3, 2, 4}};
  EXPECT_EQ(all(s.epoch(0)), (list{0, 2, 1, 4, 3, 5, 6, 8, 7}));
  EXPECT_EQ(all(s.epoch(1)), (list{1, 0, 2, 6, 8, 7, 5, 4, 3}));
  s.seed = 5;
  s.shuffle_first = true;
  EXPECT_EQ(all(s.epoch(0)), (list{0, 1, 2, 4, 3, 6, 7, 5, 8}));
  EXPECT_EQ(all(s.epoch(1)), (list{8, 7, 6, 5, 4, 3, 2, 0, 1}));
}

TEST(EvenSampler, EveryRankHasAsManyAndEachIndexIsGivenOnce) {
  for (const std::int64_t n : {1, 5, 10, 997}) {
    for (const std::int64_t world : {1, 2, 3, 7}) {
      for (const bool repeat : {false, true}) {
        std::multiset<std::int64_t> given;
        for (std::int64_t rank = 0; rank < world; ++rank) {
          even_sampler s(
              {.samples = n, .world_size = world, .rank = rank, .chunk = 10, .repeat = repeat}, 3);
          const auto mine = all(std::move(s));
          EXPECT_EQ(std::ssize(mine), repeat ? (n + world - 1) / world : n / world);
          given.insert(mine.begin(), mine.end());
        }
        const std::set<std::int64_t> distinct(given.begin(), given.end());
        if (repeat) EXPECT_EQ(std::ssize(distinct), n);
        if (!repeat) EXPECT_EQ(distinct.size(), given.size());
      }
    }
  }
  const even_sampler::options o{.samples = 100, .chunk = 10};
  EXPECT_NE(all(even_sampler(o, 0)), all(even_sampler(o, 1)));
  EXPECT_THROW(even_sampler({.samples = 10, .world_size = 2, .rank = 2}, 0), failure);
}

}  // namespace
}  // namespace millrace
