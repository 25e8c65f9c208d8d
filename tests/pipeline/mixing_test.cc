#include "pipeline/stages/mix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "millrace/millrace.h"
#include "pipeline/shards/redeal.h"
#include "tests/support/loaders.h"
#include "tests/support/tar_builder.h"
#include "tests/support/temporary_folder.h"

namespace millrace {
namespace {

using testing::key_of;
using testing::keys_of_epoch;
using testing::text_shard;
using testing::with_memory_store;

// Two sources: "a" of 6 shards with 150 samples, keys from 0; "b" of 3 with 50, from 10,000.
class Mix : public ::testing::Test {
 protected:
  Mix() {
    for (int i = 0; i < 6; ++i) {
      a_.push_back(put("a", i, text_shard(i * 1000, 20 + 2 * i, 300)));
    }
    for (int i = 0; i < 3; ++i) b_.push_back(put("b", i, text_shard(10'000 + i * 1000, 17, 300)));
  }
  std::string put(const std::string& source, int i, const std::string& content) {
    store_->put(source + std::to_string(i), content);
    return "memory:" + source + std::to_string(i);
  }
  static bool is_of_b(const std::string& key) { return key >= "s010000"; }
  lane_plan<sample> a(const shard_list_options& o = {}) const { return part(a_, o); }
  lane_plan<sample> b(const shard_list_options& o = {}) const { return part(b_, o); }
  static lane_plan<sample> part(const std::vector<std::string>& urls, shard_list_options o) {
    if (o.lanes == 0) o.lanes = 2;
    return shards(urls, o) | untar() | group_by_key();
  }
  static constexpr std::size_t in_a = 20 + 22 + 24 + 26 + 28 + 30;
  static constexpr std::size_t in_b = 51;

  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(5'000);
  std::vector<std::string> a_;
  std::vector<std::string> b_;
  engine engine_{with_memory_store(store_, 3)};
};

using order = mix_options::order;
using until = mix_options::until;

TEST_F(Mix, AnEpochHasEverySampleOfAllSourcesOnce) {
  for (const order by : {order::random, order::round_robin}) {
    auto data = engine_.run(mix({{a({.epochs = 2})}, {b({.epochs = 2})}}, {.by = by}));
    std::vector<std::string> first;
    for (int epoch = 0; epoch < 2; ++epoch) {
      const auto keys = keys_of_epoch(data);
      EXPECT_EQ(keys.size(), in_a + in_b);
      EXPECT_EQ(std::set(keys.begin(), keys.end()).size(), in_a + in_b);
      EXPECT_NE(keys, first);
      first = keys;
    }
    EXPECT_FALSE(data.next());
  }
}

TEST_F(Mix, WeightsSayHowOftenASourceIsDrawn) {
  const shard_list_options endless{.mode = epoch_mode::resample};
  auto data = engine_.run(mix({{a(endless), 3}, {b(endless), 1}}, {.seed = 4}));
  int of_b = 0;
  for (int i = 0; i < 4000; ++i) of_b += is_of_b(data.next()->key) ? 1 : 0;
  EXPECT_GT(of_b, 900);
  EXPECT_LT(of_b, 1100);
}

TEST_F(Mix, InTurnsEachSourceGivesAsMany) {
  auto data = engine_.run(mix({{a({.lanes = 1})}, {b({.lanes = 1})}}, {.by = order::round_robin}));
  for (std::size_t i = 0; i < 2 * in_b; ++i) {
    EXPECT_EQ(is_of_b(data.next()->key), i % 2 == 1) << i;
  }
  for (const auto& key : keys_of_epoch(data)) EXPECT_FALSE(is_of_b(key));
}

// Two epochs end with b's, the third with a's, which continues from epoch to epoch.
TEST_F(Mix, AnEpochThatEndsWithTheFirstSource) {
  auto data = engine_.run(mix({{a({.lanes = 1, .epochs = 3})}, {b({.lanes = 1, .epochs = 3})}},
                              {.by = order::round_robin, .ends = until::first_ends}));
  std::map<std::string, int> of_a;
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::set<std::string> of_b;
    for (const auto& key : keys_of_epoch(data)) {
      if (is_of_b(key)) {
        of_b.insert(key);
      } else {
        ++of_a[key];
      }
    }
    EXPECT_EQ(of_b.size(), epoch < 2 ? in_b : in_a - 2 * (in_b + 1)) << epoch;
  }
  EXPECT_EQ(of_a.size(), in_a);
  for (const auto& [key, times] : of_a) EXPECT_EQ(times, 1) << key;
  EXPECT_FALSE(data.next());
}

TEST_F(Mix, ASourceThatNeverEndsBesideOneThatDoes) {
  auto data = engine_.run(mix({{a({.epochs = 2})}, {b({.mode = epoch_mode::resample}), 0.5}},
                              {.ends = until::first_ends}));
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::set<std::string> of_a;
    for (const auto& key : keys_of_epoch(data)) {
      if (!is_of_b(key)) of_a.insert(key);
    }
    EXPECT_EQ(of_a.size(), in_a);
  }
  EXPECT_FALSE(data.next());
}

TEST_F(Mix, TheGlobalOrderIsTheSameForEveryWorldSizeThatDividesTheLanes) {
  using place = std::pair<std::int64_t, std::string>;
  std::set<std::vector<place>> orders;
  for (const int world : {1, 2, 4}) {
    std::vector<place> all;
    for (int rank = 0; rank < world; ++rank) {
      const shard_list_options o{.seed = 7, .rank = rank, .world_size = world, .lanes = 4};
      const auto part = shards(a_, o) | untar() | group_by_key() | shuffle({.samples = 40});
      const auto other =
          shards(b_,
                 {.seed = 8,
                  .rank = rank,
                  .world_size = world,
                  .lanes = 4,
                  .index = std::make_shared<const shard_index>(testing::index_of(engine_, b_))}) |
          untar() | group_by_key();
      auto data = engine_.run(mix({{part}, {other}}, {.seed = 9}) | shuffle({.samples = 30}));
      while (const auto s = data.next()) all.emplace_back(s->where.position, s->key);
    }
    std::ranges::sort(all);
    EXPECT_EQ(all.size(), in_a + in_b);
    orders.insert(all);
  }
  EXPECT_EQ(orders.size(), 1U);
}

TEST_F(Mix, GoesOnWhereItWasSaved) {
  const shard_list_options two{.seed = 1, .lanes = 2, .epochs = 2};
  const auto keep_some = select([](const sample& s) { return s.key.back() != '3'; });
  for (const until ends : {until::all_end, until::first_ends}) {
    for (const order by : {order::random, order::round_robin}) {
      const auto plan =
          mix({{a(two) | shuffle({.samples = 20, .seed = 2}), 2}, {b(two) | keep_some}},
              {.seed = 3, .by = by, .ends = ends}) |
          shuffle({.samples = 16, .seed = 4}) | map([](sample s) { return s; }, {.threads = 2});
      testing::expect_resumable(engine_, plan, key_of, 23);
    }
  }
}

TEST_F(Mix, AMixOfMixesGoesOnAsWell) {
  const auto inner = mix({{a()}, {b()}}, {.seed = 1});
  const auto plan = mix({{inner}, {b({.seed = 5})}}, {.seed = 2}) | batched(7);
  testing::expect_resumable(
      engine_, plan, [](const group_of<sample>& g) { return g.items.front().key; }, 4);
}

TEST_F(Mix, AStateOfAnotherMixIsRefused) {
  const auto saved = engine_.run(mix({{a()}, {b()}})).save();
  const auto refused = [&](const lane_plan<sample>& other) {
    auto data = engine_.run(other);
    try {
      data.restore(saved);
    } catch (const failure& f) {
      return f.kind() == errc::bad_state;
    }
    return false;
  };
  EXPECT_FALSE(refused(mix({{a()}, {b()}})));
  EXPECT_TRUE(refused(mix({{a(), 2}, {b()}})));
  EXPECT_TRUE(refused(mix({{a()}, {b()}}, {.seed = 1})));
  EXPECT_TRUE(refused(mix({{a()}, {b()}}, {.by = order::round_robin})));
  EXPECT_TRUE(refused(mix({{b()}, {a()}})));
  EXPECT_TRUE(refused(a()));
  // Other lanes: refused, not assigned wrongly.
  EXPECT_TRUE(refused(mix({{a({.lanes = 3})}, {b({.lanes = 3})}})));
}

// Older versions identified mixes by less: the number is that of this mix.
TEST_F(Mix, AStateOfAnOlderVersionIsTaken) {
  constexpr std::int64_t as_it_was = -4793292072233390272;
  const auto plan = mix({{a()}, {b()}});
  auto first = engine_.run(plan);
  std::vector<std::string> got;
  for (int i = 0; i < 40; ++i) got.push_back(first.next()->key);
  state older = first.save();
  for (const char* name : {"lane0/mix", "lane1/mix"}) {
    state::record r = *older.find(name);
    EXPECT_NE(r.front(), as_it_was);
    r.front() = as_it_was;
    older.put(name, std::move(r));
  }
  auto second = engine_.run(plan);
  second.restore(older);
  for (auto& key : keys_of_epoch(second)) got.push_back(std::move(key));
  EXPECT_EQ(std::set(got.begin(), got.end()).size(), in_a + in_b);
  EXPECT_EQ(got.size(), in_a + in_b);
}

TEST_F(Mix, WhatCannotBeIsRefusedBeforeAnythingIsRead) {
  const auto refused = [](auto make) {
    try {
      make();
    } catch (const failure& f) {
      return f.kind() == errc::usage;
    }
    return false;
  };
  const shard_list_options endless{.mode = epoch_mode::resample};
  EXPECT_TRUE(refused([] { mix({}); }));
  EXPECT_TRUE(refused([&] { mix({{a(), 0}}); }));
  EXPECT_TRUE(refused([&] { mix({{a(), -1}}); }));
  EXPECT_TRUE(refused([&] { mix({{a(), std::nan("")}}); }));
  EXPECT_TRUE(refused([&] { mix({{a()}, {b({.lanes = 3})}}); }));
  EXPECT_TRUE(refused([&] { mix({{a()}, {b({.epochs = 2})}}); }));
  EXPECT_TRUE(refused([&] { mix({{a()}, {b(endless)}}); }));
  EXPECT_TRUE(
      refused([&] { mix({{a({.lanes = 6})}, {b({.lanes = 6})}}, {.ends = until::first_ends}); }));
}

class WindowShuffle : public Mix {
 protected:
  plan<sample> windows(std::size_t samples, std::int64_t epochs = 2, int rank = 0, int world = 1,
                       epoch_mode mode = epoch_mode::exact) {
    return interleaved(indexed_shards(index_, {.seed = 1,
                                               .rank = rank,
                                               .world_size = world,
                                               .lanes = 2,
                                               .mode = mode,
                                               .epochs = epochs}) |
                       window_shuffle({.samples = samples, .seed = 6}));
  }
  shard_index index_ = testing::index_of(engine_, a_);
};

TEST_F(WindowShuffle, AnEpochHasEverySampleOnceInAnotherOrderEachTime) {
  for (const std::size_t samples : {1U, 40U, 100'000U}) {
    auto data = engine_.run(windows(samples));
    auto plain = engine_.run(a());
    auto expected = keys_of_epoch(plain);
    std::ranges::sort(expected);
    const auto first = keys_of_epoch(data);
    const auto second = keys_of_epoch(data);
    EXPECT_NE(first, second);
    for (auto keys : {first, second}) {
      std::ranges::sort(keys);
      EXPECT_EQ(keys, expected);
    }
    EXPECT_FALSE(data.next());
  }
}

TEST_F(WindowShuffle, SamplesAreWhatTheyAreWhenReadInARow) {
  std::map<std::string, std::string> texts;
  auto plain = engine_.run(a());
  while (const auto s = plain.next()) texts[s->key] = s->find("txt")->data.text();
  auto data = engine_.run(windows(1000, 1));
  while (const auto s = data.next()) {
    EXPECT_EQ(s->find("txt")->data.text(), texts.at(s->key));
    EXPECT_EQ("s" + fmt::format("{:06}", std::stoi(std::string(s->find("cls")->data.text()))),
              s->key);
  }
}

TEST_F(WindowShuffle, GoesOnWhereItWasSaved) {
  for (const std::size_t samples : {40U, 1000U}) {
    testing::expect_resumable(engine_, windows(samples), key_of, 13);
  }
  // Samples held by a later stage are read again.
  testing::expect_resumable(
      engine_, windows(60) | batched(7),
      [](const group_of<sample>& g) { return g.items.front().key; }, 5);
  auto data = engine_.run(windows(100'000));
  for (int i = 0; i < 70; ++i) data.next();
  EXPECT_LT(data.save().to_json().size(), 400U);
}

TEST_F(WindowShuffle, RanksTogetherReadWhatOneReads) {
  for (const epoch_mode mode : {epoch_mode::exact, epoch_mode::equal}) {
    std::vector<std::string> orders[2];
    for (const int world : {1, 2}) {
      std::vector<std::pair<std::int64_t, std::string>> all;
      for (int rank = 0; rank < world; ++rank) {
        auto data = engine_.run(windows(50, 1, rank, world, mode));
        while (const auto s = data.next()) all.emplace_back(s->where.position, s->key);
      }
      std::ranges::sort(all);
      for (const auto& [position, key] : all) orders[world - 1].push_back(key);
    }
    EXPECT_EQ(orders[0], orders[1]);
    EXPECT_EQ(orders[0].size(), in_a);
  }
}

// Samples move far: in one window over everything, the n-th yielded is not the n-th in the shards.
TEST_F(WindowShuffle, AWindowOfEverythingMixesAllShardsOfALane) {
  auto data = engine_.run(windows(100'000, 1));
  std::set<std::int64_t> shards_seen;
  for (int i = 0; i < 30; ++i) shards_seen.insert(data.next()->where.shard);
  EXPECT_EQ(shards_seen.size(), a_.size());
}

// More concurrent reads than buffers, of samples larger than a buffer.
TEST_F(WindowShuffle, LittleMemoryIsNoDeadlock) {
  store_->put("large", text_shard(0, 40, 700'000));
  testing::temporary_folder folder;
  const auto path = folder.write("large.tar", *store_->find("large"));
  engine small(with_memory_store(store_, 1, 8_MiB));
  auto data =
      small.run(interleaved(indexed_shards(testing::index_of(engine_, {path}), {.lanes = 2}) |
                            window_shuffle({.samples = 1000, .ahead = 64})));
  EXPECT_EQ(keys_of_epoch(data).size(), 40U);
}

TEST_F(WindowShuffle, AShardThatIsGoneCostsItsSamplesAlone) {
  store_->put("a2", "");
  auto data = engine_.run(windows(1000, 1) | on_error(skip_errors()));
  EXPECT_EQ(keys_of_epoch(data).size(), in_a - 24);
  EXPECT_EQ(data.counts().skipped_in_all(), 24U);
}

TEST_F(WindowShuffle, NeedsTheIndexAndTheSameLanes) {
  EXPECT_THROW(engine_.run(shards(a_) | window_shuffle()), failure);
  EXPECT_THROW(window_shuffle({.samples = 0}), failure);
  const auto saved = engine_.run(windows(50)).save();
  auto first = engine_.run(windows(50));
  first.next();
  const auto begun = first.save();
  auto other =
      engine_.run(interleaved(indexed_shards(index_, {.seed = 1, .lanes = 3, .epochs = 2}) |
                              window_shuffle({.samples = 50, .seed = 6})));
  EXPECT_THROW(other.restore(begun), failure);
}

}  // namespace
}  // namespace millrace
