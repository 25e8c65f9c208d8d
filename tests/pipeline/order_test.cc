#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "engine/base/random.h"
#include "millrace/millrace.h"
#include "pipeline/shards/shards.h"
#include "tests/support/text_shards.h"

namespace millrace {
namespace {

std::shared_ptr<const std::vector<std::string>> list_of(std::size_t shards) {
  return std::make_shared<const std::vector<std::string>>(shards);
}

std::vector<std::int64_t> epoch_of(shard_order& order) {
  std::vector<std::int64_t> out;
  while (const auto s = order.next()) out.push_back(s->shard);
  return out;
}

TEST(ShardOrder, LanesTogetherReadEveryShardOnceAnEpoch) {
  const shard_list_options o{.seed = 3, .lanes = 4, .epochs = 3};
  std::set<std::vector<std::int64_t>> orders;
  std::vector<shard_order> lanes;
  for (int l = 0; l < 4; ++l) lanes.emplace_back(list_of(10), o, l);
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
  EXPECT_EQ(orders.size(), 3U);  // a different order every epoch
  EXPECT_FALSE(lanes[0].next());
}

TEST(ShardOrder, TheListsOwnOrder) {
  const shard_list_options o{.lanes = 2, .shuffle = false};
  shard_order lane(list_of(5), o, 1);
  EXPECT_EQ(epoch_of(lane), (std::vector<std::int64_t>{1, 3}));
}

TEST(ShardOrder, ResamplingDrawsForEverAndSeeks) {
  const shard_list_options o{.seed = 1, .lanes = 2, .mode = epoch_mode::resample};
  shard_order a(list_of(7), o, 0);
  std::set<std::int64_t> seen;
  for (int i = 0; i < 200; ++i) seen.insert(a.next()->shard);
  EXPECT_EQ(seen.size(), 7U);
  shard_order b(list_of(7), o, 0);
  b.seek(0, a.draw());
  for (int i = 0; i < 20; ++i) EXPECT_EQ(a.next()->shard, b.next()->shard);
}

TEST(ShardOrder, AMillionShardsArePlannedAtOnce) {
  const shard_list_options o{.lanes = 8};
  shard_order lane(list_of(1'000'000), o, 0);
  EXPECT_EQ(epoch_of(lane).size(), 125'000U);
}

shard_index index_of(const std::vector<std::int64_t>& samples, bool offsets) {
  shard_index out;
  for (const std::int64_t n : samples) {
    shard_index::shard s{.url = "s" + std::to_string(out.shards.size()), .samples = n};
    for (std::int64_t i = 0; offsets && n > 0 && i <= n; ++i) {
      s.blocks.push_back(static_cast<std::uint32_t>(3 * i));
    }
    out.shards.push_back(std::move(s));
  }
  return out;
}

// The samples of a piece, as (shard, number).
std::vector<std::pair<std::int64_t, std::int64_t>> samples_of(const shard_ref& piece,
                                                              const shard_index& index) {
  const auto& s = index.shards[static_cast<std::size_t>(piece.shard)];
  constexpr std::int64_t sample_bytes = 3 * 512;
  const std::int64_t first = piece.begin / sample_bytes + piece.skip;
  std::int64_t end = piece.end > 0 ? piece.end / sample_bytes : s.samples;
  if (piece.samples >= 0) end = std::min(end, first + piece.samples);
  std::vector<std::pair<std::int64_t, std::int64_t>> out;
  for (std::int64_t i = first; i < end; ++i) out.emplace_back(piece.shard, i);
  return out;
}

// Lanes have the same number of samples, within one if each sample is read once, and exactly if
// ranks must be equal: whatever the lengths, with or without offsets.
TEST(EpochOrder, DealsSamplesEvenly) {
  random_stream random(1, purpose::fake_data);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::int64_t> lengths;
    for (std::uint32_t i = random.below(12) + 1; i > 0; --i) lengths.push_back(random.below(50));
    const bool offsets = round % 2 == 0;
    const auto index = std::make_shared<const shard_index>(index_of(lengths, offsets));
    const std::int64_t all = index->samples();
    for (const auto mode : {epoch_mode::exact, epoch_mode::equal, epoch_mode::equal_repeating}) {
      if (mode == epoch_mode::exact && !index->has_offsets()) continue;
      const int lanes = static_cast<int>(random.below(9)) + 1;
      const shard_list_options o{.lanes = lanes, .mode = mode, .index = index};
      const epoch_order order(std::vector<std::string>(lengths.size()), o, round);
      std::map<std::pair<std::int64_t, std::int64_t>, int> given;
      std::set<std::size_t> per_lane;
      for (int l = 0; l < lanes; ++l) {
        std::size_t mine = 0;
        for (const shard_ref& piece : order.lane(l)) {
          for (const auto& s : samples_of(piece, *index)) {
            ++given[s];
            ++mine;
          }
        }
        per_lane.insert(mine);
      }
      const auto distinct = std::ssize(given);
      const bool once = std::ranges::all_of(given, [](const auto& g) { return g.second == 1; });
      if (mode == epoch_mode::exact) {
        EXPECT_EQ(distinct, all);
        EXPECT_TRUE(once);
        EXPECT_LE(*per_lane.rbegin() - *per_lane.begin(), 1U);
      } else {
        EXPECT_EQ(per_lane.size(), 1U);
        EXPECT_EQ(distinct, mode == epoch_mode::equal ? all / lanes * lanes : all);
        if (mode == epoch_mode::equal) EXPECT_TRUE(once);
      }
    }
  }
}

TEST(EpochOrder, HooksReplaceEachChoice) {
  const std::vector<std::string> urls{"a", "b", "c", "d"};
  shard_list_options o{.lanes = 1};
  o.hooks.select = [](std::string_view url, std::int64_t epoch) { return epoch > 0 || url != "b"; };
  o.hooks.arrange = [](std::int64_t, std::vector<std::int64_t>& s) { std::ranges::reverse(s); };
  std::vector<std::int64_t> got;
  for (const auto& piece : epoch_order(urls, o, 0).lane(0)) got.push_back(piece.shard);
  EXPECT_EQ(got, (std::vector<std::int64_t>{3, 2, 0}));
  EXPECT_EQ(epoch_order(urls, o, 1).lane(0).size(), 4U);
  shard_list_options a{.lanes = 1};
  a.hooks.seed = [](std::int64_t epoch) { return static_cast<std::uint64_t>(epoch) + 7; };
  EXPECT_EQ(epoch_order(urls, a, 3).lane(0),
            epoch_order(urls, {.seed = 10, .lanes = 1}, 3).lane(0));
  o.hooks.rank = [](std::int64_t lane) { return lane < 6 ? 0 : 1; };
  EXPECT_EQ(o.rank_of(5), 0);
  EXPECT_EQ(o.rank_of(7), 1);
}

std::string usage_told_by(const std::function<void()>& what) {
  try {
    what();
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::usage) << f.what();
    EXPECT_FALSE(f.why().is_skippable());
    return f.what();
  }
  return "not refused";
}

TEST(EpochOrder, AHookArrangesTheShardsThatItIsGiven) {
  using numbers = std::vector<std::int64_t>;
  const std::vector<std::string> urls{"a", "b", "c", "d"};
  const auto said_of = [&](auto arrange) {
    shard_list_options o{.lanes = 1};
    o.hooks.select = [](std::string_view url, std::int64_t) { return url != "b"; };
    o.hooks.arrange = [arrange](std::int64_t, numbers& s) { arrange(s); };
    return usage_told_by([&] { epoch_order(urls, o, 0); });
  };
  const auto is_in = [](const std::string& text, std::string_view part) {
    return text.find(part) != text.npos;
  };
  EXPECT_EQ(said_of([](numbers& s) { std::ranges::reverse(s); }), "not refused");
  EXPECT_PRED2(is_in, said_of([](numbers& s) { s.push_back(4); }), "no shard 4 in a list of 4");
  EXPECT_PRED2(is_in, said_of([](numbers& s) { s.front() = -1; }), "no shard -1");
  EXPECT_PRED2(is_in, said_of([](numbers& s) { s.front() = std::int64_t{1} << 40; }), "no shard");
  EXPECT_PRED2(is_in, said_of([](numbers& s) { s.push_back(1); }), "shard 1 appears twice, or");
  EXPECT_PRED2(is_in, said_of([](numbers& s) { s.push_back(2); }), "shard 2 appears twice, or");
  EXPECT_PRED2(is_in, said_of([](numbers& s) { s.pop_back(); }), "1 of 3 shards are left out");
}

// An exception of a hook ends the run, even if it is skippable: there is no order.
TEST(EpochOrder, AHookThatThrowsIsNamed) {
  const auto thrown_by = [](order_hooks hooks) {
    try {
      epoch_order({"a", "b"}, {.lanes = 1, .hooks = std::move(hooks)}, 0);
    } catch (const failure& f) {
      EXPECT_FALSE(f.why().is_skippable()) << f.what();
      return f.why().what();
    }
    return std::string("nothing");
  };
  EXPECT_EQ(thrown_by({.seed = [](std::int64_t) -> std::uint64_t { throw 42; }}),
            "order_hooks.seed threw int");
  EXPECT_EQ(thrown_by({.select = [](std::string_view, std::int64_t) -> bool { throw 42; }}),
            "order_hooks.select threw int");
  EXPECT_EQ(thrown_by({.arrange = [](std::int64_t, std::vector<std::int64_t>&) { throw 42; }}),
            "order_hooks.arrange threw int");
  EXPECT_EQ(thrown_by({.seed = [](std::int64_t) -> std::uint64_t {
              throw failure(error(errc::bad_label, "as it is").skippable());
            }}),
            "as it is");
}

TEST(Shards, AHookGivesEveryLaneARankOfTheWorld) {
  const auto lengths = std::make_shared<const shard_index>(index_of({5, 5, 5, 5}, false));
  const auto said_of = [&](std::function<int(std::int64_t)> rank, epoch_mode mode) {
    shard_list_options o{.world_size = 2, .lanes = 4, .mode = mode, .index = lengths};
    o.hooks.rank = std::move(rank);
    return usage_told_by([&] { shards({"a", "b", "c", "d"}, o); });
  };
  const auto three_and_one = [](std::int64_t lane) { return lane == 3 ? 1 : 0; };
  const auto halves = [](std::int64_t lane) { return lane < 2 ? 1 : 0; };
  for (const auto mode :
       {epoch_mode::exact, epoch_mode::resample, epoch_mode::equal, epoch_mode::equal_repeating}) {
    for (const int wrong : {-1, 2}) {
      const auto said = said_of([wrong](std::int64_t lane) { return lane == 3 ? wrong : 0; }, mode);
      EXPECT_NE(said.find(fmt::format("gives lane 3 to rank {} of 2", wrong)), said.npos) << said;
    }
    EXPECT_EQ(said_of(halves, mode), "not refused");
  }
  EXPECT_EQ(said_of(three_and_one, epoch_mode::exact), "not refused");
  const auto said = said_of(three_and_one, epoch_mode::equal);
  EXPECT_NE(said.find("1 lane to one rank and 3 to another"), said.npos) << said;
}

TEST(ShardOrder, HooksSayWhichShardsAreDrawnAndBySeed) {
  const auto urls = std::make_shared<const std::vector<std::string>>(
      std::vector<std::string>{"a", "b", "c", "d", "e"});
  const auto drawn = [&](const shard_list_options& o, std::int64_t from = 0) {
    shard_order order(urls, o, 1);
    if (from > 0) order.seek(o.first_epoch, from);
    std::vector<std::int64_t> out;
    for (std::int64_t i = from; i < 200; ++i) out.push_back(order.next()->shard);
    return out;
  };
  shard_list_options o{.seed = 3, .lanes = 2, .mode = epoch_mode::resample, .first_epoch = 7};
  const auto of_all = drawn(o);
  o.hooks.seed = [](std::int64_t epoch) { return static_cast<std::uint64_t>(epoch) + 1; };
  EXPECT_EQ(drawn(o), drawn({.seed = 8, .lanes = 2, .mode = epoch_mode::resample}));
  EXPECT_NE(drawn(o), of_all);
  o.hooks.select = [](std::string_view url, std::int64_t epoch) {
    return epoch == 7 && (url == "b" || url == "e");
  };
  const auto of_two = drawn(o);
  EXPECT_EQ(std::set<std::int64_t>(of_two.begin(), of_two.end()), (std::set<std::int64_t>{1, 4}));
  // A draw depends only on its number.
  EXPECT_EQ(drawn(o, 150), std::vector<std::int64_t>(of_two.begin() + 150, of_two.end()));
  o.hooks.select = [](std::string_view, std::int64_t) { return false; };
  EXPECT_THROW(drawn(o), failure);
  o.hooks.arrange = [](std::int64_t, std::vector<std::int64_t>&) {};
  const auto said = usage_told_by([&] { shards(*urls, o); });
  EXPECT_NE(said.find("order_hooks.arrange cannot be combined with resampling"), said.npos) << said;
}

// Large sizes do not overflow.
using Shuffled = testing::text_shards;

TEST_F(Shuffled, OneOfAllThereIsHoldsAllThereIs) {
  constexpr auto all = std::numeric_limits<std::size_t>::max();
  engine eng(testing::with_memory_store(store_));
  for (const std::size_t samples : {all, all - 1}) {
    const auto head = shards(urls(), {.lanes = 2}) | untar() | group_by_key();
    auto data = eng.run(head | shuffle({.samples = samples, .bytes = all}) |
                        map([](sample s) { return s; }));
    auto keys = testing::keys_of_epoch(data);
    std::ranges::sort(keys);
    EXPECT_EQ(keys, all_keys());
  }
}

TEST(Shards, AJobOfAsManyRanksAsThereCanBeHasALaneForEach) {
  constexpr int most = std::numeric_limits<int>::max();
  EXPECT_EQ(shard_list_options{.world_size = most}.lane_count(), most);
  EXPECT_EQ(shard_list_options{.world_size = 3}.lane_count(), 9);
}

TEST(Shards, RefusesWhatCannotBe) {
  EXPECT_THROW(shards({}), failure);
  EXPECT_THROW(shards({"a"}, {.rank = 2, .world_size = 2}), failure);
  EXPECT_THROW(shards({"a"}, {.world_size = 3, .lanes = 2}), failure);
  EXPECT_THROW(shards({"a", "b"}, {.world_size = 3}), failure);       // a rank without a shard
  EXPECT_THROW(shards({"a"}, {.mode = epoch_mode::equal}), failure);  // length unknown
  EXPECT_EQ((shard_list_options{.world_size = 3}.lane_count()), 9);
}

TEST(Shards, RefuseToBeMixedByWeightsOfWhichThereIsNoSum) {
  const auto source = [](double weight) {
    return mix_source{shards({"a"}) | untar() | group_by_key(), weight};
  };
  EXPECT_NO_THROW(mix({source(1e307), source(1e307)}));
  EXPECT_THROW(mix({source(1e308), source(1e308)}), failure);
}

}  // namespace
}  // namespace millrace
