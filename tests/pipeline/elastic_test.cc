#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <set>

#include "engine/host/log.h"
#include "millrace/millrace.h"
#include "pipeline/shards/redeal.h"
#include "pipeline/state/merged.h"
#include "pipeline/state/records.h"
#include "tests/support/seeds.h"
#include "tests/support/text_shards.h"

namespace millrace {
namespace {

using testing::keys_of_epoch;
using testing::text_shard;
using testing::with_memory_store;
using Ranks = testing::text_shards;

// A job saved by some ranks and resumed by others. If both numbers divide the lanes, the global
// order is what it would have been; in any case each remaining sample comes once.
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

// A rank that holds the end of its epoch, or is past it, changes neither the epoch nor the
// positions of the others.
TEST(Merged, GoesOnWithTheEarliestEpochAndTheHighestPositions) {
  const auto of_rank = [](std::int64_t epoch, std::int64_t base, std::size_t ends_held) {
    state s;
    s.put(plan_record::name, {1, 2, 2, 0, 1});
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

// Resumed by other numbers of ranks repeatedly, an epoch still has every sample once.
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

// Fewer lanes and more: samples that stages hold are assigned to existing lanes, at their
// positions, and later samples have positions after all that were yielded.
TEST_F(Ranks, DealtAnewWithWhatStagesHold) {
  engine eng(with_memory_store(store_));
  const auto plan_of = [&](int lanes) {
    return interleaved(text_plan({.lanes = lanes})) |
           map([](const sample& s) { return s; }, {.threads = 2}) | batched(5);
  };
  std::vector<std::string> got;
  std::set<std::int64_t> places;
  const auto take = [&](const auto& group) {
    for (const sample& s : group.items) {
      got.push_back(s.key);
      EXPECT_TRUE(places.insert(s.where.position).second) << s.key << " " << s.where.position;
    }
  };
  state saved;
  for (const int lanes : {8, 3, 5, 8, 1, 4}) {
    auto data = eng.run(plan_of(lanes));
    if (!got.empty()) data.restore(saved);
    for (int i = 0; i < 8; ++i) take(*data.next());
    saved = data.save();
    EXPECT_FALSE(saved.held(pending_record).empty());
    const state other = redealt(saved, 2, testing::usual_records());
    for (const origin& o : other.held(pending_record)) EXPECT_LT(o.lane, 2);
  }
  auto data = eng.run(plan_of(2));
  data.restore(saved);
  while (auto group = data.next()) take(*group);
  std::ranges::sort(got);
  EXPECT_EQ(got, all_keys());
}

// If the index has other numbers than the shards, ranks never differ in length silently: each
// delivers what was assigned to it, or fails with `integrity`.
TEST_F(Ranks, AnEqualEpochOfAnIndexThatIsWrongIsEqualOrFails) {
  engine eng(with_memory_store(store_));
  const shard_index index = testing::index_of(eng, urls());
  int failures = 0;
  int whole = 0;
  for (const std::int64_t step : {0, -3, -1, 1, 4, 1000}) {
    for (const std::size_t changed : {std::size_t{0}, std::size_t{1}, index.shards.size()}) {
      for (const int world : {1, 2, 4}) {
        shard_index wrong = index;
        for (std::size_t i = 0; i < wrong.shards.size(); ++i) {
          wrong.shards[i].blocks.clear();
          if (i == changed || changed == wrong.shards.size()) wrong.shards[i].samples += step;
        }
        const auto each = static_cast<std::size_t>(wrong.samples() / 4 * 4 / world);
        for (int rank = 0; rank < world; ++rank) {
          const shard_list_options o{
              .seed = 1, .rank = rank, .world_size = world, .lanes = 4, .mode = epoch_mode::equal};
          auto data = eng.run(indexed_shards(wrong, o) | untar() | group_by_key());
          try {
            EXPECT_EQ(keys_of_epoch(data).size(), each) << step << " of " << changed;
            ++whole;
          } catch (const failure& f) {
            EXPECT_EQ(f.kind(), errc::integrity) << f.what();
            EXPECT_NE(step, 0);
            ++failures;
          }
        }
      }
    }
  }
  EXPECT_GT(failures, 10);
  EXPECT_GT(whole, 10);
}

// An equal epoch, by the lengths of shards alone and by offsets: the same number of samples on
// every rank, within shards too, and resumed there.
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

TEST_F(Ranks, InDifferentEpochsResumeWithTheirLanes) {
  engine eng(with_memory_store(store_));
  const auto plan_of = [](int rank, int world, int lanes) {
    return text_plan({.rank = rank, .world_size = world, .lanes = lanes, .epochs = 2});
  };
  std::vector<state> saved;
  std::size_t given = 0;
  for (const int rank : {0, 1}) {
    auto data = eng.run(plan_of(rank, 2, 4));
    if (rank == 0) given += keys_of_epoch(data).size();
    for (int i = 0; i < 30; ++i) given += data.next() ? 1 : 0;
    saved.push_back(data.save());
  }
  const state whole = merged(saved);
  auto other = eng.run(plan_of(0, 1, 6));
  try {
    other.restore(whole);
    ADD_FAILURE() << "resumed with other lanes";
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::bad_state);
    EXPECT_NE(f.why().what_to_do().find("with the lanes that it was saved with"), std::string::npos)
        << f.what();
  }
  auto data = eng.run(plan_of(0, 1, 4));
  data.restore(whole);
  for (int epoch = 0; epoch < 2; ++epoch) given += keys_of_epoch(data).size();
  EXPECT_EQ(given, 2 * all_keys().size());
}

// Two ranks, one of which has far fewer samples, so that it is epochs ahead of the other.
class UnevenRanks : public ::testing::Test {
 protected:
  UnevenRanks() {
    set_log_level(log_level::quiet);
    store_->put("long", text_shard(0, 11, 300));
    store_->put("short", text_shard(100, 3, 300));
  }
  ~UnevenRanks() override { set_log_level(log_level::notice); }

  static plan<sample> of_rank(int rank, int world) {
    return interleaved(
        shards({"memory:long", "memory:short"},
               {.rank = rank, .world_size = world, .lanes = 2, .shuffle = false, .epochs = 40}) |
        untar() | group_by_key());
  }
  template <class T>
  static std::string next_of(loader<T>& data) {
    const auto item = data.next();
    return item ? item->key : "end";
  }

  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(10'000);
  engine eng_{with_memory_store(store_)};
};

// However far apart the ranks are, and whichever stage works ahead: another number of lanes yields
// each sample of each epoch once, or is refused.
TEST_F(UnevenRanks, GiveNoEpochTwiceToOtherLanes) {
  constexpr std::int64_t epochs = 5;
  const auto same = [](sample s) { return s; };
  const auto plan_of = [&](int kind, int rank, int world, int lanes) {
    auto all = interleaved(shards({"memory:long", "memory:short"}, {.rank = rank,
                                                                    .world_size = world,
                                                                    .lanes = lanes,
                                                                    .shuffle = false,
                                                                    .epochs = epochs}) |
                           untar() | group_by_key());
    if (kind == 0) return all;
    if (kind == 1) return all | map(same, {.threads = 2});
    return all | map(same, {.threads = 2}) | epochs_of(6) | prefetch(2);
  };
  int resumed = 0;
  const auto check = [&](int kind, int of_long, int of_short, int of_both) {
    std::multiset<std::pair<std::int64_t, std::string>> given;
    const auto take = [&](loader<sample>& data, int most) {
      for (int ends_in_a_row = 0; most > 0 && ends_in_a_row < 3;) {
        const auto s = data.next();
        ends_in_a_row = s ? 0 : ends_in_a_row + 1;
        if (!s) continue;
        given.emplace(s->where.epoch, s->key);
        --most;
      }
    };
    std::vector<state> saved;
    for (const int rank : {0, 1}) {
      auto data = eng_.run(plan_of(kind, rank, 2, 2));
      take(data, rank == 0 ? of_long : of_short);
      saved.push_back(data.save());
    }
    state whole = merged(saved);
    if (of_both > 0) {  // in between, one rank with the same lanes
      auto data = eng_.run(plan_of(kind, 0, 1, 2));
      data.restore(whole);
      take(data, of_both);
      whole = data.save();
    }
    const std::string what = fmt::format("{}: {}, {}, then {}", kind, of_long, of_short, of_both);
    auto rest = eng_.run(plan_of(kind, 0, 1, 3));
    try {
      rest.restore(whole);
    } catch (const failure& f) {
      EXPECT_EQ(f.kind(), errc::bad_state) << what;
      return;
    }
    ++resumed;
    take(rest, 1000);
    EXPECT_EQ(given.size(), epochs * (11 + 3)) << what;
    EXPECT_EQ(std::ranges::adjacent_find(given), given.end()) << what;
  };
  for (const int kind : {0, 1, 2}) {
    for (const int of_long : {4, 6, 11, 12}) {
      for (const int of_short : {1, 3, 4, 6, 9, 15}) {
        for (const int of_both : {0, 5, 12}) check(kind, of_long, of_short, of_both);
      }
    }
  }
  EXPECT_GT(resumed, 30);
}

TEST_F(UnevenRanks, KeepTheirCountsWhereTheirStatesAreMerged) {
  const std::vector<std::function<plan<sample>(plan<sample>)>> chains = {
      [](plan<sample> p) { return std::move(p) | slice(1, 100) | epochs_of(4); },
      [](plan<sample> p) { return std::move(p) | repeated(2); },
      [](plan<sample> p) {
        return std::move(p) | slice(0, 2) | repeated(3) |
               map([](sample s) { return s; }, {.threads = 2});
      }};
  constexpr int longest = 24;
  for (std::size_t c = 0; c < chains.size(); ++c) {
    for (int cut = 0; cut < longest; cut += static_cast<int>(testing::every())) {
      SCOPED_TRACE(fmt::format("chain {}, cut after {}", c, cut));
      std::array<std::vector<std::string>, 2> expected;
      std::vector<state> saved;
      for (int r = 0; r < 2; ++r) {
        auto data = eng_.run(chains[c](of_rank(r, 2)));
        for (int i = 0; i < cut; ++i) next_of(data);
        saved.push_back(data.save());
        for (int i = 0; i < longest; ++i)
          expected[static_cast<std::size_t>(r)].push_back(next_of(data));
      }
      const state whole = merged(saved);
      for (int r = 0; r < 2; ++r) {
        auto data = eng_.run(chains[c](of_rank(r, 2)));
        data.restore(whole);
        std::vector<std::string> got;
        for (int i = 0; i < longest; ++i) got.push_back(next_of(data));
        ASSERT_EQ(got, expected[static_cast<std::size_t>(r)]) << "rank " << r;
      }
    }
  }
}

// As many failed samples are skipped in an interrupted job as in one that is never interrupted,
// also with other ranks.
TEST_F(UnevenRanks, CountSkippedSamplesOnce) {
  const auto plan_of = [](int rank, int world) {
    return of_rank(rank, world) | map([](sample s) -> result<sample> {
             if (s.key.back() != '2') return s;
             return error(errc::bad_image, "unwanted").skippable();
           }) |
           on_error(skip_up_to(12));
  };
  const auto counted = [](const std::vector<state>& of_ranks) {
    std::int64_t out = 0;
    for (const state& s : of_ranks) {
      for (const auto& [name, values] : s.records()) {
        if (name.starts_with(skipped_record)) out += values[0];
      }
    }
    return out;
  };
  std::optional<state> whole;
  std::int64_t skipped = 0;
  for (const int world : {2, 2, 2, 1, 2, 1, 1, 2}) {
    std::vector<state> saved;
    for (int r = 0; r < world; ++r) {
      auto data = eng_.run(plan_of(r, world));
      if (whole) data.restore(*whole);
      for (int i = 0; i < 4; ++i) next_of(data);
      skipped += static_cast<std::int64_t>(data.counts().skipped_in_all());
      saved.push_back(data.save());
    }
    EXPECT_EQ(counted(saved), skipped);
    whole = merged(saved);
  }
  EXPECT_GT(skipped, 4);
}

// Stages that work ahead may have had errors of the next epoch, but no samples: another number of
// lanes yields each sample once, or is refused.
TEST_F(UnevenRanks, CountSkippedSamplesOnceWhereOneIsAheadOfItsEpoch) {
  constexpr std::int64_t epochs = 3;
  const auto plan_of = [](int lanes) {
    const sample_stage fails{"fails", [](sample s) -> result<std::optional<sample>> {
                               if (s.key != "s000000" && s.key != "s000100") return s;
                               return error(errc::bad_image, "unwanted").skippable();
                             }};
    const auto same = [](sample s) { return s; };
    return interleaved(shards({"memory:long", "memory:short"},
                              {.lanes = lanes, .shuffle = false, .epochs = epochs}) |
                       untar() | group_by_key() | fails) |
           on_error(skip_errors()) | map(same, {.threads = 2}) | map(same, {.threads = 2});
  };
  const auto counted = [](const state& s) {
    return s.find(skipped_record + millrace::of_rank(0, 1))->front();
  };
  const auto take = [](loader<sample>& data, std::int64_t most) {
    for (std::int64_t i = 0; i < most; ++i) data.next();
  };
  constexpr std::int64_t samples = 11 + 3 - 2;
  int resumed = 0;
  for (std::int64_t n = 1; n < epochs * (samples + 1); ++n) {
    auto data = eng_.run(plan_of(2));
    take(data, n);
    auto rest = eng_.run(plan_of(3));
    try {
      rest.restore(data.save());
    } catch (const failure& f) {
      EXPECT_EQ(f.kind(), errc::bad_state) << n;
      continue;
    }
    ++resumed;
    take(rest, epochs * (samples + 1) - n);
    EXPECT_EQ(counted(rest.save()), 2 * epochs) << "after " << n;
  }
  EXPECT_GT(resumed, 20);
}

}  // namespace
}  // namespace millrace
