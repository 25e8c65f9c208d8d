#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "millrace/millrace.h"
#include "pipeline/redeal.h"
#include "tests/support/text_shards.h"

namespace millrace {
namespace {

using testing::keys_of_epoch;
using testing::text_shard;
using testing::with_memory_store;
using Ranks = testing::text_shards;

// A job saved by some ranks and resumed by others: where both numbers divide the lanes the global
// order is what it would have been, and each remaining sample comes once in any case.
class Elastic : public ::testing::TestWithParam<int> {};

TEST_P(Elastic, EachRemainingSampleComesOnce) {
  auto store = std::make_shared<memory_store>(10'000);
  std::vector<std::string> urls;
  for (int i = 0; i < 26; ++i) {
    const std::string name = "e" + std::to_string(i);
    store->put(name, text_shard(i * 1000, 3 + i * 7 % 11, 200));
    urls.push_back("memory:" + name);
  }
  engine eng(with_memory_store(store));
  const int before = 8;
  const auto plan_of = [&](int rank, int world, int lanes) {
    return shards(urls,
                  {.seed = 5, .rank = rank, .world_size = world, .lanes = lanes, .epochs = 2}) |
           untar() | group_by_key() | shuffle({.samples = 60, .seed = 5});
  };
  using place = std::pair<std::int64_t, std::string>;  // position and key
  const auto rest_of_epoch = [](loader<sample>& data, std::vector<place>& into) {
    while (auto s = data.next()) into.emplace_back(s->where.position, s->key);
  };
  const int after = GetParam();
  for (const int lanes : {8, 24}) {
    for (const int steps : {0, 1, 5, 14}) {
      std::vector<state> saved;
      std::vector<place> expected;
      for (int r = 0; r < before; ++r) {
        auto data = eng.run(plan_of(r, before, lanes));
        for (int i = 0; i < steps; ++i) data.next();
        saved.push_back(state::from_json(data.save().to_json()).value());
        rest_of_epoch(data, expected);
      }
      const state whole = merged(saved);
      const int lanes_after = std::max(lanes, after);
      std::vector<place> got;
      std::vector<std::string> next_epoch;
      for (int r = 0; r < after; ++r) {
        auto data = eng.run(plan_of(r, after, lanes_after));
        data.restore(whole);
        rest_of_epoch(data, got);
        while (auto s = data.next()) next_epoch.push_back(s->key);
      }
      std::ranges::sort(expected);
      std::ranges::sort(got);
      if (lanes_after == lanes) {
        EXPECT_EQ(got, expected) << lanes << " lanes, " << steps << " steps";
      } else {
        const auto keys = [](const std::vector<place>& all) {
          std::vector<std::string> out;
          out.reserve(all.size());
          for (const auto& [position, key] : all) out.push_back(key);
          std::ranges::sort(out);
          return out;
        };
        EXPECT_EQ(keys(got), keys(expected)) << lanes << " lanes, " << steps << " steps";
      }
      std::ranges::sort(next_epoch);
      EXPECT_EQ(std::ranges::adjacent_find(next_epoch), next_epoch.end());
      std::size_t all = 0;
      for (int i = 0; i < 26; ++i) all += static_cast<std::size_t>(3 + i * 7 % 11);
      EXPECT_EQ(next_epoch.size(), all);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Elastic, ::testing::Values(1, 2, 3, 4, 6, 8, 12));

// A rank that holds the end of its epoch, or is past it, moves neither the epoch nor the positions
// of the others.
TEST(Merged, GoesOnWithTheEarliestEpochAndTheHighestPositions) {
  const auto of_rank = [](std::int64_t epoch, std::int64_t base, std::size_t ends_held) {
    state s;
    s.put(plan_record, {1, 2, 2, 0, 1});
    s.put(epoch_record, {epoch});
    s.put(base_record, {base});
    for (std::size_t i = 0; i < ends_held; ++i) s.append(end_owed_record, state::record{1});
    return s;
  };
  const state whole = merged(std::vector{of_rank(3, 40, 0), of_rank(4, 0, 0), of_rank(5, 0, 1)});
  EXPECT_EQ(consumers_epoch(whole), 3);
  EXPECT_EQ(position_base(whole), 40);
  const state alone = merged(std::vector{of_rank(5, 0, 1)});
  EXPECT_EQ(consumers_epoch(alone), 4);
  EXPECT_EQ(alone.find(end_owed_record), nullptr);
}

// Resumed by other numbers of ranks again and again, an epoch still has every sample once.
TEST_F(Ranks, DealtAnewAgainAndAgain) {
  engine eng(with_memory_store(store_));
  std::vector<std::string> got;
  state saved;
  bool begun = false;
  for (const int lanes : {8, 3, 5, 8, 1}) {
    auto data = eng.run(text_plan({.lanes = lanes}));
    if (begun) data.restore(saved);
    for (int i = 0; i < 60; ++i) got.push_back(data.next()->key);
    saved = data.save();
    begun = true;
  }
  auto data = eng.run(text_plan({.lanes = 4}));
  data.restore(saved);
  for (const auto& key : keys_of_epoch(data)) got.push_back(key);
  std::ranges::sort(got);
  EXPECT_EQ(got, all_keys());
}

// An equal epoch, by the lengths of shards alone and by offsets: as many samples on every rank, in
// the middle of shards as well, and resumed there.
TEST_F(Ranks, AnEqualEpochHasAsManySamplesOnEveryRank) {
  engine eng(with_memory_store(store_));
  const shard_index index = testing::index_of(eng, urls());
  for (const bool offsets : {false, true}) {
    shard_index known = index;
    if (!offsets) {
      for (auto& s : known.shards) s.blocks.clear();
    }
    std::vector<std::string> all;
    std::set<std::size_t> lengths;
    for (int rank = 0; rank < 4; ++rank) {
      const shard_list_options o{
          .seed = 1, .rank = rank, .world_size = 4, .lanes = 8, .mode = epoch_mode::equal};
      const auto plan =
          indexed_shards(known, o) | untar() | group_by_key() | shuffle({.samples = 30});
      auto data = eng.run(plan);
      const auto keys = keys_of_epoch(data);
      auto first = eng.run(plan);
      for (int i = 0; i < 37; ++i) first.next();
      auto second = eng.run(plan);
      second.restore(first.save());
      const auto rest = keys_of_epoch(second);
      EXPECT_EQ(rest, (std::vector<std::string>(keys.begin() + 37, keys.end())));
      lengths.insert(keys.size());
      all.insert(all.end(), keys.begin(), keys.end());
    }
    std::ranges::sort(all);
    EXPECT_EQ(std::ranges::adjacent_find(all), all.end());
    EXPECT_EQ(lengths.size(), 1U);
    EXPECT_EQ(all.size(), all_keys().size() / 8 * 8);
  }
}

}  // namespace
}  // namespace millrace
