// A state resumed with another number of lanes yields exactly the rest, or is refused: wherever it
// was saved, also after the ends of some lanes' epochs, and whatever index there is.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "engine/host/log.h"
#include "millrace/millrace.h"
#include "pipeline/shards/redeal.h"
#include "pipeline/state/merged.h"
#include "tests/support/loaders.h"
#include "tests/support/seeds.h"
#include "tests/support/tar_builder.h"

namespace millrace {
namespace {

using testing::text_shard;
using testing::with_memory_store;

class OtherLanes : public ::testing::Test {
 protected:
  OtherLanes() { set_log_level(log_level::quiet); }
  ~OtherLanes() override { set_log_level(log_level::notice); }

  using given = std::multiset<std::pair<std::int64_t, std::string>>;  // epoch and key

  // Shards "memory:NAME0" and so on, of different lengths, and their index.
  std::shared_ptr<const shard_index> put(const std::string& name, int shards, int first) {
    std::vector<std::string> urls;
    for (int i = 0; i < shards; ++i) {
      store_->put(name + std::to_string(i), text_shard(first + 100 * i, 3 + i % 4, 100));
      urls.push_back(fmt::format("memory:{}{}", name, i));
    }
    return std::make_shared<const shard_index>(testing::index_of(eng_, urls));
  }
  static std::vector<std::string> urls_of(const shard_index& index) {
    std::vector<std::string> out;
    for (const auto& s : index.shards) out.push_back(s.url);
    return out;
  }
  // Takes up to `most` items, including ends of epochs; fewer at the end of the data.
  static void take(loader<sample>& data, int most, given& into) {
    for (int ends_in_a_row = 0; most > 0 && ends_in_a_row < 4; --most) {
      const auto s = data.next();
      ends_in_a_row = s ? 0 : ends_in_a_row + 1;
      if (s) into.emplace(s->where.epoch, s->key);
    }
  }
  static constexpr int everything = 1'000'000;

  using plan_maker = std::function<lane_plan<sample>(int rank, int world, int lanes)>;

  // `ranks` with 4 lanes save after every item up to their ends and beyond, and one rank resumes
  // with these lanes and with others.
  void check_all_places(const plan_maker& plan_of, int ranks, int places,
                        const std::function<state(const state&)>& as_saved = {}) {
    given expected;
    auto unbroken = eng_.run(plan_of(0, 1, 4));
    take(unbroken, everything, expected);
    for (int n = 0; n < places; n += static_cast<int>(testing::every())) {
      given before;
      std::vector<state> saved;
      for (int r = 0; r < ranks; ++r) {
        auto data = eng_.run(plan_of(r, ranks, 4));
        take(data, n, before);
        saved.push_back(data.save());
      }
      const state whole = as_saved ? as_saved(merged(saved)) : merged(saved);
      for (const int lanes : {4, 1, 3, 6}) {
        SCOPED_TRACE(fmt::format("{} ranks, {} items, then {} lanes", ranks, n, lanes));
        given all = before;
        auto data = eng_.run(plan_of(0, 1, lanes));
        try {
          data.restore(whole);
        } catch (const failure& f) {
          EXPECT_EQ(f.kind(), errc::bad_state) << f.what();
          EXPECT_NE(lanes, 4) << f.what();
          continue;
        }
        take(data, everything, all);
        EXPECT_EQ(all, expected);
      }
    }
  }

  // Older versions saved lanes outside a window without a record.
  static state without_windows_record(const state& of) {
    state out;
    for (const auto& [name, values] : of.records()) {
      const bool is_none = name.ends_with("/window") && values == state::record{-1};
      if (!is_none) out.put(name, values);
    }
    for (const auto& [name, held] : of.all_held()) out.hold(name, held);
    return out;
  }

  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(10'000);
  engine eng_{with_memory_store(store_)};
};

TEST_F(OtherLanes, OfWindowsAreRefusedOrGiveTheRest) {
  const auto index = put("w", 6, 0);
  for (const std::size_t samples : {8U, 1000U}) {
    const auto plan_of = [&](int rank, int world, int lanes) {
      return indexed_shards(
                 *index,
                 {.seed = 1, .rank = rank, .world_size = world, .lanes = lanes, .epochs = 2}) |
             window_shuffle({.samples = samples, .seed = 2});
    };
    for (const int ranks : {1, 2, 4}) {
      // Up to the second epoch: some ranks yield its first items before others have ended the first
      // one.
      const int places = static_cast<int>(index->samples()) / ranks + 6;
      check_all_places(plan_of, ranks, places);
      check_all_places(plan_of, ranks, places, without_windows_record);
    }
  }
}

TEST_F(OtherLanes, OfMixesOfWindowsAreRefusedOrGiveTheRest) {
  const auto a = put("a", 3, 0);
  const auto b = put("b", 2, 10'000);
  const auto plan_of = [&](int rank, int world, int lanes) {
    const shard_list_options o{
        .seed = 1, .rank = rank, .world_size = world, .lanes = lanes, .epochs = 2};
    const auto windows = indexed_shards(*a, o) | window_shuffle({.samples = 12, .seed = 2});

    const auto other = indexed_shards(*b, o) | window_shuffle({.samples = 100, .seed = 3});
    return mix({{windows, 1}, {other, 2}}, {.seed = 4});
  };
  for (const int ranks : {1, 2, 4}) {
    const int places = static_cast<int>(a->samples() + b->samples()) / ranks + 4;
    check_all_places(plan_of, ranks, places);
    check_all_places(plan_of, ranks, places, without_windows_record);
  }
}

// The records of a user-defined stage are unknown to the library: they are not dropped.
TEST_F(OtherLanes, OfAStageOfOnesOwnThatKeepsARecordAreRefused) {
  struct counts final : stream<sample> {
    counts(lane_context& lane, std::unique_ptr<stream<sample>> items)
        : id(lane.id("own")), in_front(std::move(items)) {}
    awaitable<outcome> next() override {
      ++count;
      co_return co_await in_front->next();
    }
    void save(state& to) const override {
      in_front->save(to);
      to.put(id, {count});
    }
    void restore(const state& from) override {
      in_front->restore(from);
      if (const auto* r = from.find(id)) count = r->front();
    }
    std::string id;
    std::unique_ptr<stream<sample>> in_front;
    std::int64_t count = 0;
  };
  const auto index = put("o", 6, 0);
  const auto plan_of = [&](int lanes) {
    const lane_stage<sample, sample> own{
        .name = "own",
        .wrap =
            [](lane_context& lane, std::unique_ptr<stream<sample>> items) {
              return std::make_unique<counts>(lane, std::move(items));
            },
        .unchanged = true};
    return shards(urls_of(*index), {.lanes = lanes}) | untar() | group_by_key() | own;
  };
  auto first = eng_.run(plan_of(2));
  first.next();
  const state saved = first.save();
  auto other = eng_.run(plan_of(3));
  EXPECT_THROW(other.restore(saved), failure);
  auto same = eng_.run(plan_of(2));
  EXPECT_NO_THROW(same.restore(saved));
}

// A stage after user-defined epochs may hold a sample of an earlier epoch of the data.
TEST_F(OtherLanes, OfEpochsOfOnesOwnAreRefusedOrGiveTheRest) {
  const auto index = put("e", 6, 0);
  const auto plan_of = [&](bool is_repeated, int lanes) {
    const auto p = interleaved(shards(urls_of(*index), {.seed = 3, .lanes = lanes, .epochs = 3}) |
                               untar() | group_by_key() | shuffle({.samples = 6}));
    const auto of_one_length =
        bucketed([](const sample& s) { return std::int64_t{s.key == "s000100" ? 9 : 1}; },
                 {{.up_to = 1, .size = 3}, {.up_to = 10, .size = 4}});
    return is_repeated ? p | repeated(3) | of_one_length | unbatched()
                       : p | epochs_of(1000) | of_one_length | unbatched();
  };
  int resumed = 0;
  for (const bool is_repeated : {true, false}) {
    given expected;
    auto unbroken = eng_.run(plan_of(is_repeated, 4));
    take(unbroken, everything, expected);
    for (std::size_t n = 1; n < expected.size(); ++n) {
      for (const int lanes : {4, 5}) {
        SCOPED_TRACE(fmt::format("{}, {} items, then {} lanes", is_repeated, n, lanes));
        given all;
        auto first = eng_.run(plan_of(is_repeated, 4));
        take(first, static_cast<int>(n), all);
        auto second = eng_.run(plan_of(is_repeated, lanes));
        try {
          second.restore(first.save());
        } catch (const failure& f) {
          EXPECT_EQ(f.kind(), errc::bad_state) << f.what();
          EXPECT_NE(lanes, 4) << f.what();
          continue;
        }
        take(second, everything, all);
        EXPECT_EQ(all, expected);
        resumed += lanes != 4 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(resumed, 20);
}

// 20 shards suffice for one lane, but not for more, which are assigned samples instead.
class Threshold : public OtherLanes {
 protected:
  lane_plan<sample> plan_of(int lanes, std::shared_ptr<const shard_index> index) const {
    return shards(urls_of(*index_), {.seed = 5, .lanes = lanes, .index = std::move(index)}) |
           untar() | group_by_key() | shuffle({.samples = 10, .seed = 6});
  }
  // The state after `items` items of runs with each of these numbers of lanes in succession.
  state saved_by(const std::vector<int>& lanes, int items, given& into) {
    std::optional<state> saved;
    for (const int n : lanes) {
      auto data = eng_.run(plan_of(n, index_));
      if (saved) data.restore(*saved);
      take(data, items, into);
      saved = state::from_json(data.save().to_json()).value();
    }
    return *saved;
  }
  std::string refusal_of(const state& saved, int lanes, std::shared_ptr<const shard_index> index) {
    try {
      auto data = eng_.run(plan_of(lanes, std::move(index)));
      data.restore(saved);
    } catch (const failure& f) {
      EXPECT_EQ(f.kind(), errc::bad_state);
      return f.what();
    }
    return "";
  }

  std::shared_ptr<const shard_index> index_ = put("t", 20, 0);
};

TEST_F(Threshold, IsCrossedByAnyNumberOfLanes) {
  for (const std::vector<int>& lanes :
       {std::vector{1, 2}, {2, 1}, {1, 4, 1}, {3, 1, 2}, {2, 1, 1, 5}, {1, 1, 8, 8, 1, 3}}) {
    for (const int items : {0, 1, 7, 15}) {
      given all;
      const state saved = saved_by({lanes.begin(), lanes.end() - 1}, items, all);
      for (const bool is_dealt_before : {false, true}) {
        given got = all;
        auto data = eng_.run(plan_of(lanes.back(), index_));
        data.restore(is_dealt_before ? redealt(saved, lanes.back(), testing::usual_records())
                                     : saved);
        take(data, everything, got);
        EXPECT_EQ(std::ssize(got), index_->samples()) << lanes.size() << " runs of " << items;
        EXPECT_EQ(std::ranges::adjacent_find(got), got.end());
      }
    }
  }
}

// Passes at most this many samples of the job's first epoch in all lanes together, each lane its
// part.
class at_most final : public detail::passing<sample> {
 public:
  at_most(const lane_context& lane, std::unique_ptr<stream<sample>> samples, std::int64_t most)
      : passing(std::move(samples)),
        id_(lane.id(record)),
        left_(most / static_cast<std::int64_t>(lane.lanes)) {}
  static constexpr const char* record = "at_most";

  awaitable<outcome> next() override {
    for (;;) {
      auto item = co_await items_->next();
      if (!item || !*item) co_return item;
      if (left_ == 0) continue;
      --left_;
      co_return item;
    }
  }
  void save(state& to) const override {
    items_->save(to);
    to.put(id_, {left_});
  }
  void restore(const state& from) override {
    items_->restore(from);
    left_ = from.find(id_)->front();
  }
  // Distributes the rest as evenly as possible.
  static void deal(const dealing& what, state& to) {
    std::int64_t left = 0;
    for (std::int64_t l = 0; l < what.lanes_before; ++l) {
      left += what.from.find(lane_record_name(l, record))->front();
    }
    for (std::int64_t l = 0; l < what.lanes; ++l) {
      to.put(lane_record_name(l, record), {(left + l) / what.lanes});
    }
  }

 private:
  std::string id_;
  std::int64_t left_;
};

TEST_F(OtherLanes, TakeARecordOfAStageOfOnesOwnThatSaysHowItIsDealt) {
  static constexpr int most = 12;
  const auto index = put("own", 8, 0);
  const auto plan_of = [&](int lanes, std::vector<lane_dealer> records) {
    lane_stage<sample, sample> own{.name = "own", .unchanged = true, .records = std::move(records)};
    own.wrap = [](lane_context& lane, std::unique_ptr<stream<sample>> samples) {
      return std::make_unique<at_most>(lane, std::move(samples), most);
    };
    return shards(urls_of(*index), {.seed = 3, .lanes = lanes, .epochs = 1}) | untar() |
           group_by_key() | std::move(own) | shuffle({.samples = 4, .seed = 3});
  };
  const std::vector<lane_dealer> dealt{{at_most::record, at_most::deal}};
  for (int taken = 0; taken <= most; ++taken) {
    for (const int lanes : {1, 3}) {
      SCOPED_TRACE(fmt::format("{} taken, then {} lanes", taken, lanes));
      auto first = eng_.run(plan_of(2, dealt));
      given got;
      take(first, taken, got);
      const state saved = first.save();
      auto second = eng_.run(plan_of(lanes, dealt));
      second.restore(saved);
      take(second, everything, got);
      EXPECT_EQ(std::ssize(got), most);
      EXPECT_EQ(std::ranges::adjacent_find(got), got.end());
      // A stage without a dealer is refused.
      auto other = eng_.run(plan_of(lanes, {}));
      try {
        other.restore(saved);
        ADD_FAILURE() << "not refused";
      } catch (const failure& f) {
        EXPECT_EQ(f.kind(), errc::bad_state);
        EXPECT_NE(std::string(f.what()).find(at_most::record), std::string::npos) << f.what();
      }
    }
  }
}

// Each would overwrite the other's.
TEST_F(OtherLanes, TwoStagesDoNotSaveOneRecord) {
  const auto index = put("own", 4, 0);
  const auto saving = [](const char* record) {
    return lane_stage<sample, sample>{
        .name = "own",
        .wrap =
            [](lane_context& lane, std::unique_ptr<stream<sample>> samples) {
              return std::make_unique<at_most>(lane, std::move(samples), 12);
            },
        .unchanged = true,
        .records = {{record, at_most::deal}}};
  };
  const auto head = shards(urls_of(*index), {.lanes = 2}) | untar() | group_by_key();
  EXPECT_NO_THROW(head | saving("one") | saving("other") | shuffle());
  for (const char* record : {"one", "group", "shuffle", "cursor"}) {
    try {
      const auto plan = head | shuffle() | saving("one") | saving(record);
      ADD_FAILURE() << "not refused: " << record;
    } catch (const failure& f) {
      EXPECT_EQ(f.kind(), errc::usage) << f.what();
      EXPECT_NE(std::string(f.what()).find(fmt::format("'{}'", record)), std::string::npos)
          << f.what();
    }
  }
}

TEST_F(OtherLanes, AreToldWhichRecordCannotBeMade) {
  const auto index = put("own", 4, 0);
  const auto plan_of = [&](int lanes) {
    lane_stage<sample, sample> own{.name = "own", .unchanged = true};
    own.records = {
        {at_most::record, [](const dealing&, state&) { throw std::runtime_error("no"); }}};
    own.wrap = [](lane_context& lane, std::unique_ptr<stream<sample>> samples) {
      return std::make_unique<at_most>(lane, std::move(samples), 12);
    };
    return shards(urls_of(*index), {.lanes = lanes}) | untar() | group_by_key() | std::move(own);
  };
  const state saved = eng_.run(plan_of(2)).save();
  auto other = eng_.run(plan_of(3));
  try {
    other.restore(saved);
    ADD_FAILURE() << "not refused";
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::uncaught);
    EXPECT_NE(std::string(f.what()).find("the record 'at_most'"), std::string::npos) << f.what();
  }
}

// Only stages after the lanes owe the end of an epoch: within a lane it would be every lane's.
TEST_F(OtherLanes, OweNoEnds) {
  class owing final : public detail::passing<sample> {
   public:
    using passing::passing;
    awaitable<outcome> next() override { return items_->next(); }
    void save(state& to) const override {
      items_->save(to);
      to.append(end_owed_record, state::record{1});
    }
  };
  const auto index = put("owing", 4, 0);
  lane_stage<sample, sample> own{.name = "own", .unchanged = true};
  own.wrap = [](lane_context&, std::unique_ptr<stream<sample>> samples) {
    return std::make_unique<owing>(std::move(samples));
  };
  auto data = eng_.run(shards(urls_of(*index), {.lanes = 2}) | untar() | group_by_key() | own);
  try {
    data.save();
    ADD_FAILURE() << "not refused";
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::usage) << f.what();
  }
}

// The samples of an epoch were assigned by its index: the rest of it needs the same index.
TEST_F(Threshold, KeepsTheIndexByWhichTheEpochWasBegun) {
  shard_index other = *index_;
  --other.shards[3].samples;
  other.shards[3].blocks.pop_back();
  other.shards[3].names.clear();
  const auto changed = std::make_shared<const shard_index>(other);
  for (const std::vector<int>& before : {std::vector{2}, {2, 1}, {2, 1, 1}}) {
    given ignored;
    const state saved = saved_by(before, 9, ignored);
    for (const int lanes : {1, 3}) {
      EXPECT_EQ(refusal_of(saved, lanes, index_), "");
      EXPECT_NE(refusal_of(saved, lanes, nullptr).find("index"), std::string::npos) << lanes;
      EXPECT_NE(refusal_of(saved, lanes, changed).find("index"), std::string::npos) << lanes;
    }
  }
  // Whole shards are assigned without an index.
  given ignored;
  const state saved = saved_by({1}, 9, ignored);
  EXPECT_EQ(refusal_of(saved, 1, nullptr), "");
  EXPECT_EQ(refusal_of(saved, 2, changed), "");
}

}  // namespace
}  // namespace millrace
