#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "pipeline/shards.h"

namespace millrace {
namespace {

std::vector<std::int64_t> epoch_of(shard_order& order) {
  std::vector<std::int64_t> out;
  while (const auto s = order.next()) out.push_back(s->shard);
  return out;
}

TEST(ShardOrder, LanesTogetherReadEveryShardOnceAnEpoch) {
  const shard_list_options o{.seed = 3, .lanes = 4, .epochs = 3};
  std::set<std::vector<std::int64_t>> orders;
  std::vector<shard_order> lanes;
  for (int l = 0; l < 4; ++l) lanes.emplace_back(10, o, l);
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::int64_t> all;
    for (auto& lane : lanes) {
      const auto part = epoch_of(lane);
      all.insert(all.end(), part.begin(), part.end());
    }
    orders.insert(all);
    std::ranges::sort(all);
    for (std::int64_t i = 0; i < 10; ++i) EXPECT_EQ(all.at(static_cast<std::size_t>(i)), i);
  }
  EXPECT_EQ(orders.size(), 3U);  // another order every epoch
  EXPECT_FALSE(lanes[0].next());
}

TEST(ShardOrder, TheListsOwnOrder) {
  const shard_list_options o{.lanes = 2, .shuffle = false};
  shard_order lane(5, o, 1);
  EXPECT_EQ(epoch_of(lane), (std::vector<std::int64_t>{1, 3}));
}

TEST(ShardOrder, ResamplingDrawsForEverAndSeeks) {
  const shard_list_options o{.seed = 1, .lanes = 2, .mode = epoch_mode::resample};
  shard_order a(7, o, 0);
  std::set<std::int64_t> seen;
  for (int i = 0; i < 200; ++i) seen.insert(a.next()->shard);
  EXPECT_EQ(seen.size(), 7U);
  shard_order b(7, o, 0);
  b.seek(0, a.draw());
  for (int i = 0; i < 20; ++i) EXPECT_EQ(a.next()->shard, b.next()->shard);
}

TEST(ShardOrder, AMillionShardsArePlannedAtOnce) {
  const shard_list_options o{.lanes = 8};
  shard_order lane(1'000'000, o, 0);
  EXPECT_EQ(epoch_of(lane).size(), 125'000U);
}

TEST(Shards, RefusesWhatCannotBe) {
  EXPECT_THROW(shards({}), failure);
  EXPECT_THROW(shards({"a"}, {.rank = 2, .world_size = 2}), failure);
  EXPECT_THROW(shards({"a"}, {.world_size = 3, .lanes = 8}), failure);
  EXPECT_EQ((shard_list_options{.world_size = 3}.lane_count()), 9);
}

}  // namespace
}  // namespace millrace
