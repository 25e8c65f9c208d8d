// Counting stages, resumed by other ranks: the current epoch is as long as it would have been.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "millrace/millrace.h"
#include "pipeline/state/merged.h"
#include "tests/support/seeds.h"
#include "tests/support/text_shards.h"

namespace millrace {
namespace {

using groups = group_of<sample>;

class ElasticCounts : public ::testing::Test {
 protected:
  static constexpr int epoch_samples = 48;  // over all ranks
  static constexpr int shards_in_all = 48;
  static constexpr int samples_of_shard = 6;

  ElasticCounts() {
    for (int i = 0; i < shards_in_all; ++i) {
      store_->put(fmt::format("c{}", i), testing::text_shard(i * 100, samples_of_shard, 200));
      urls_.push_back(fmt::format("memory:c{}", i));
    }
  }

  // A rank's samples, in epochs of `length`, followed by a stage that holds some.
  using chain = std::function<plan<groups>(plan<sample>, int length)>;
  static std::vector<chain> chains() {
    const auto same = [](sample s) { return s; };
    const auto same_group = [](groups g) { return g; };
    return {
        [](plan<sample> p, int length) {
          return std::move(p) | epochs_of(length) | batched(2) | prefetch(2);
        },
        [=](plan<sample> p, int length) {
          return std::move(p) | epochs_of(length) | map(same, {.threads = 2}) | batched(1);
        },
        [=](plan<sample> p, int length) {
          return std::move(p) | epochs_of(length) | batched(4) | map(same_group, {.threads = 2});
        },
        [](plan<sample> p, int length) {
          return std::move(p) | epochs_of(length) | batched(3) | unbatched() | batched(2);
        },
        // Epochs of batches.
        [=](plan<sample> p, int length) {
          return std::move(p) | batched(2) | epochs_of(length / 2) |
                 map(same_group, {.threads = 2}) | prefetch(3);
        },
    };
  }
  plan<groups> plan_of(const chain& of, int rank, int world, int lanes) const {
    return of(
        interleaved(
            shards(urls_,
                   {.seed = 7, .rank = rank, .world_size = world, .lanes = lanes, .epochs = 3}) |
            untar() | group_by_key() | shuffle({.samples = 20, .seed = 7})),
        epoch_samples / world);
  }
  // The samples left in the current epoch.
  static int rest_of_epoch(loader<groups>& data) {
    int out = 0;
    while (const auto g = data.next()) out += static_cast<int>(g->items.size());
    return out;
  }

  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(10'000);
  std::vector<std::string> urls_;
};

TEST_F(ElasticCounts, AnEpochUnderWayIsAsLongForOtherRanks) {
  engine eng(testing::with_memory_store(store_));
  const auto all = chains();
  int in_later_epochs = 0;
  std::uint64_t place = 0;
  for (std::size_t c = 0; c < all.size(); ++c) {
    for (const auto& [before, after, lanes_after] : {std::array{4, 1, 12},
                                                     {4, 2, 12},
                                                     {2, 4, 12},
                                                     {1, 3, 12},
                                                     {3, 1, 12},
                                                     {2, 3, 12},
                                                     {3, 4, 12},
                                                     {1, 4, 8},
                                                     {4, 2, 8},
                                                     {2, 2, 8},
                                                     {2, 2, 12},
                                                     {1, 1, 5}}) {
      for (const int steps : {0, 1, 2, 5, 6, 7, 13}) {
        if (!testing::is_taken(place++)) continue;
        SCOPED_TRACE(fmt::format("chain {}, {} ranks, then {} with {} lanes, after {} steps", c,
                                 before, after, lanes_after, steps));
        std::vector<state> saved;
        int given = 0;  // in the current epoch
        for (int r = 0; r < before; ++r) {
          auto data = eng.run(plan_of(all[c], r, before, 12));
          int of_rank = 0;
          for (int i = 0; i < steps; ++i) {
            const auto g = data.next();
            of_rank = g ? of_rank + static_cast<int>(g->items.size()) : 0;
            in_later_epochs += g ? 0 : 1;
          }
          given += of_rank;
          saved.push_back(state::from_json(data.save().to_json()).value());
        }
        const state whole = merged(saved);
        std::vector<int> lengths;
        for (int r = 0; r < after; ++r) {
          auto data = eng.run(plan_of(all[c], r, after, lanes_after));
          data.restore(whole);
          lengths.push_back(rest_of_epoch(data));
          given += lengths.back();
          EXPECT_EQ(rest_of_epoch(data), epoch_samples / after) << "rank " << r;
        }
        // Every rank counts whole items.
        EXPECT_GE(given, epoch_samples);
        EXPECT_LT(given, epoch_samples + 2 * after);
        if (after != before) EXPECT_EQ(std::ranges::count(lengths, lengths.front()), after);
      }
    }
  }
  if (testing::every() == 1) EXPECT_GT(in_later_epochs, 50);
}

// What a slice has yielded is yielded once, whichever rank held it.
TEST_F(ElasticCounts, ASliceHasItsItemsOnceForOtherRanks) {
  engine eng(testing::with_memory_store(store_));
  const chain of = [](plan<sample> p, int /*length*/) {
    return std::move(p) | slice(0, 1000) | batched(2) | prefetch(3);
  };
  for (const auto& [before, after] : {std::array{4, 1}, {2, 4}, {1, 3}}) {
    for (const int steps : {0, 1, 5, 11}) {
      std::vector<state> saved;
      int given = 0;
      for (int r = 0; r < before; ++r) {
        auto data = eng.run(plan_of(of, r, before, 12));
        for (int i = 0; i < steps; ++i) given += static_cast<int>(data.next()->items.size());
        saved.push_back(data.save());
      }
      const state whole = merged(saved);
      for (int r = 0; r < after; ++r) {
        auto data = eng.run(plan_of(of, r, after, 12));
        data.restore(whole);
        given += rest_of_epoch(data);
      }
      EXPECT_EQ(given, shards_in_all * samples_of_shard) << before << " " << after << " " << steps;
    }
  }
}

// A hook gives ranks other lanes than their numbers would.
TEST_F(ElasticCounts, WhatWasHeldIsOfTheLanesThatAHookGave) {
  engine eng(testing::with_memory_store(store_));
  for (int rank = 0; rank < 2; ++rank) {
    shard_list_options o{.seed = 7, .rank = rank, .world_size = 2, .lanes = 4, .epochs = 3};
    o.hooks.rank = [](std::int64_t lane) { return static_cast<int>(lane / 2); };
    const auto p = interleaved(shards(urls_, o) | untar() | group_by_key()) | epochs_of(20) |
                   map([](sample s) { return s; }, {.threads = 4});
    for (const int given : {1, 5, 15, 19}) {
      auto data = eng.run(p);
      for (int i = 0; i < given; ++i) ASSERT_TRUE(data.next());
      auto resumed = eng.run(p);
      resumed.restore(state::from_json(data.save().to_json()).value());
      for (int epoch = 0; epoch < 3; ++epoch) {
        int rest = 0;
        while (resumed.next()) ++rest;
        EXPECT_EQ(rest, epoch == 0 ? 20 - given : 20) << rank << " after " << given;
      }
    }
  }
}

}  // namespace
}  // namespace millrace
