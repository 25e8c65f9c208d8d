#include <gtest/gtest.h>

#include <array>
#include <set>

#include "millrace/millrace.h"
#include "pipeline/formats/tar_samples.h"
#include "pipeline/state/merged.h"
#include "pipeline/state/records.h"
#include "tests/support/seeds.h"
#include "tests/support/text_shards.h"
#include "tests/support/watchdog.h"

namespace millrace {
namespace {

using testing::bounded;
using testing::same;
using testing::with_memory_store;

// An epoch of which a stage leaves out every item, wherever the stage is, is an epoch without items
// to the stages after it: none of them takes it for the end of the data, loses an item, or waits.

using epochs = std::vector<std::vector<std::string>>;

constexpr std::int64_t all_epochs = 5;
constexpr std::size_t per_epoch = 20;

struct stage_under_test {
  const char* name;
  plan<sample> (*after)(plan<sample>);
  epochs (*gives)(const epochs&);  // the epochs yielded for those of the data
};

epochs as_they_are(const epochs& of) {
  return of;
}

// Cuts epochs again, with the end of the data at the end.
epochs in_epochs_of(const epochs& of, std::size_t length) {
  epochs out(1);
  for (const auto& epoch : of) {
    for (const auto& key : epoch) {
      if (out.back().size() == length) out.emplace_back();
      out.back().push_back(key);
    }
  }
  return out;
}

epochs in_pairs(const epochs& of) {
  epochs out;
  for (std::size_t i = 0; i < of.size(); ++i) {
    if (i % 2 == 0) out.emplace_back();
    out.back().insert(out.back().end(), of[i].begin(), of[i].end());
  }
  return out;
}

const auto one = [](const sample&) { return 1; };

const stage_under_test stages_under_test[] = {
    {"map", [](plan<sample> p) { return std::move(p) | map(same); }, as_they_are},
    {"map_on_threads", [](plan<sample> p) { return std::move(p) | map(same, {.threads = 2}); },
     as_they_are},
    {"select",
     [](plan<sample> p) { return std::move(p) | select([](const sample&) { return true; }); },
     as_they_are},
    {"slice", [](plan<sample> p) { return std::move(p) | slice(0, 1000); }, as_they_are},
    {"prefetch_one", [](plan<sample> p) { return std::move(p) | prefetch(1); }, as_they_are},
    {"prefetch_all", [](plan<sample> p) { return std::move(p) | prefetch(1000); }, as_they_are},
    {"on_error", [](plan<sample> p) { return std::move(p) | on_error(skip_rate(0.5)); },
     as_they_are},
    {"batched", [](plan<sample> p) { return std::move(p) | batched(7) | unbatched(); },
     as_they_are},
    {"bucketed",
     [](plan<sample> p) {
       return std::move(p) | bucketed(one, {{.up_to = 1, .size = 7}}) | unbatched();
     },
     as_they_are},
    {"repeated", [](plan<sample> p) { return std::move(p) | repeated(2); }, in_pairs},
    {"repeated_after_prefetch",
     [](plan<sample> p) { return std::move(p) | prefetch(1000) | repeated(2) | prefetch(3); },
     in_pairs},
    {"epochs_of", [](plan<sample> p) { return std::move(p) | epochs_of(13); },
     [](const epochs& of) { return in_epochs_of(of, 13); }},
    {"epochs_of_the_same", [](plan<sample> p) { return std::move(p) | epochs_of(per_epoch); },
     [](const epochs& of) { return in_epochs_of(of, per_epoch); }},
    {"epochs_of_after_prefetch",
     [](plan<sample> p) {
       return std::move(p) | prefetch(1000) | epochs_of(33) | map(same, {.threads = 2}) |
              prefetch(2);
     },
     [](const epochs& of) { return in_epochs_of(of, 33); }},
};

const std::vector<std::set<std::int64_t>> which_are_empty = {
    {}, {0}, {0, 1}, {2}, {1, 2, 3}, {1, 3}, {4}, {3, 4}, {0, 2, 4}, {0, 1, 2, 3, 4}};

class EmptyEpochs : public ::testing::Test {
 protected:
  EmptyEpochs() {
    for (int i = 0; i < 4; ++i) {
      store_->put(fmt::format("e{}", i), testing::text_shard(i * 100, per_epoch / 4, 300));
    }
  }
  static lane_plan<sample> data(const shard_list_options& o) {
    return shards({"memory:e0", "memory:e1", "memory:e2", "memory:e3"}, o) | untar() |
           group_by_key();
  }
  static lane_plan<sample> data() { return data({.seed = 1, .lanes = 2, .epochs = all_epochs}); }
  static auto without(const std::set<std::int64_t>& empty) {
    return [empty](const sample& s) { return !empty.contains(s.where.epoch); };
  }
  static std::string said(const std::optional<sample>& item) { return item ? item->key : "end"; }
  static std::vector<std::string> said(loader<sample>& from, std::size_t calls) {
    std::vector<std::string> out;
    for (std::size_t i = 0; i < calls; ++i) out.push_back(said(from.next()));
    return out;
  }
  epochs whole(const lane_plan<sample>& what) {
    epochs out(all_epochs);
    auto from = engine_.run(what);
    for (auto& epoch : out) epoch = testing::keys_of_epoch(from);
    return out;
  }
  // As next() returns them, with three further ends.
  static std::vector<std::string> flat(const epochs& of) {
    std::vector<std::string> out;
    for (const auto& epoch : of) {
      out.insert(out.end(), epoch.begin(), epoch.end());
      out.emplace_back("end");
    }
    out.insert(out.end(), 3, "end");
    return out;
  }
  void expect(const std::string& what, const plan<sample>& p,
              const std::vector<std::string>& wanted) {
    bounded(what, [&] {
      auto from = engine_.run(p);
      ASSERT_EQ(said(from, wanted.size()), wanted) << what;
      for (std::size_t stop = 0; stop < wanted.size(); stop += 7 * testing::every()) {
        auto first = engine_.run(p);
        auto got = said(first, stop);
        auto second = engine_.run(p);
        second.restore(first.save());
        for (auto& rest : said(second, wanted.size() - stop)) got.push_back(std::move(rest));
        ASSERT_EQ(got, wanted) << what << ", stopped at " << stop;
      }
    });
  }

  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(5'000);
  engine engine_{with_memory_store(store_, 3)};
};

class BeforeAStage : public EmptyEpochs, public ::testing::WithParamInterface<stage_under_test> {};

TEST_P(BeforeAStage, LoseNothing) {
  const auto all = whole(data());
  for (const auto& empty : which_are_empty) {
    epochs wanted = all;
    for (const std::int64_t e : empty) wanted[static_cast<std::size_t>(e)].clear();
    expect(fmt::format("{}, {} of the epochs are empty", GetParam().name, empty.size()),
           GetParam().after(interleaved(data()) | select(without(empty))),
           flat(GetParam().gives(wanted)));
  }
}

// However many there are, next() returns.
TEST_P(BeforeAStage, ForEver) {
  for (const bool is_stopped : {false, true}) {
    auto from = engine_.run(
        GetParam().after(interleaved(data({.lanes = 2, .epochs = std::int64_t{1} << 40})) |
                         select([](const sample&) { return false; })));
    bounded(GetParam().name, [&] {
      for (int i = 0; i < 5; ++i) EXPECT_FALSE(from.next());
      if (is_stopped) from.stop();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, BeforeAStage, ::testing::ValuesIn(stages_under_test),
                         [](const auto& info) { return std::string(info.param.name); });

// In the lanes: an epoch in which no lane has an item; if it is the first, that is an error.
TEST_F(EmptyEpochs, OfLanes) {
  const auto all = whole(data() | shuffle({.samples = 8, .seed = 1}));
  for (const auto& empty : which_are_empty) {
    if (empty.contains(0)) continue;
    epochs wanted = all;
    for (const std::int64_t e : empty) wanted[static_cast<std::size_t>(e)].clear();
    const auto lanes = data() | select(without(empty)) | shuffle({.samples = 8, .seed = 1});
    const std::string what = fmt::format("{} of the epochs of lanes are empty", empty.size());
    expect(what, interleaved(lanes), flat(wanted));
    expect(what, interleaved(lanes) | epochs_of(13), flat(in_epochs_of(wanted, 13)));
    expect(what, interleaved(lanes) | repeated(2) | prefetch(3), flat(in_pairs(wanted)));
  }
}

// A mix of a source that is empty in some epochs and one that is not.
TEST_F(EmptyEpochs, OfASourceOfAMix) {
  const auto two = [](const std::set<std::int64_t>& empty) {
    return mix({{data() | select(without(empty)), 1}, {data(), 1}}, {.seed = 1});
  };
  for (const auto& empty : which_are_empty) {
    bounded("a mix", [&] {
      auto from = engine_.run(two(empty));
      for (std::int64_t e = 0; e < all_epochs; ++e) {
        EXPECT_EQ(testing::keys_of_epoch(from).size(),
                  empty.contains(e) ? per_epoch : 2 * per_epoch);
      }
      for (int i = 0; i < 3; ++i) EXPECT_FALSE(from.next());
    });
  }
}

// Of two ranks, one has nothing in the epochs in which the other has the only shard with samples.
TEST_F(EmptyEpochs, OfARank) {
  const auto of_rank = [](int rank) {
    shard_list_options o{.seed = 3, .epochs = 40};
    o.lanes = o.world_size = 2;
    o.rank = rank;
    return interleaved(shards({"memory:e0", "memory:e1"}, o) | untar() | group_by_key()) |
           select([](const sample& s) { return s.where.shard == 0; });
  };
  for (const bool is_ahead : {false, true}) {
    std::size_t sum = 0;
    for (const int rank : {0, 1}) {
      bounded("a rank", [&] {
        auto from =
            engine_.run((is_ahead ? of_rank(rank) | prefetch(4) : of_rank(rank)) | epochs_of(8));
        while (true) {
          const std::size_t n = testing::keys_of_epoch(from).size();
          sum += n;
          if (n < 8) break;
        }
      });
    }
    EXPECT_EQ(sum, 40 * per_epoch / 4);
  }
}

// Draws with replacement never end: if none of them yields a sample, the run gives up.
TEST_F(EmptyEpochs, OfShardsThatAreDrawnForEver) {
  store_->put("none", testing::tar_builder().file("README", "no sample").end().str());
  store_->put("many", testing::text_shard(0, 50, 1));
  const auto none = [](const sample&) { return false; };
  const auto all = [](const sample&) { return true; };
  const auto drawn = [](std::vector<std::string> urls) {
    return shards(std::move(urls), {.mode = epoch_mode::resample}) | untar() | group_by_key();
  };
  const lane_plan<sample> in_vain[] = {
      drawn({"memory:none"}),
      drawn({"memory:many"}) | select(none),
      mix({{drawn({"memory:many"})}, {drawn({"memory:many"})}}) | select(none),
      mix({{drawn({"memory:none"})}, {drawn({"memory:none"})}}),
      shards({"memory:none"}, {.mode = epoch_mode::resample}) | read_samples(tar_samples()),
  };
  std::vector<plan<sample>> plans;
  for (const auto& lanes : in_vain) {
    plans.push_back(interleaved(lanes | shuffle({.samples = 100})));
  }
  plans.push_back(interleaved(drawn({"memory:many"})) | select(none));
  for (const auto& p : plans) {
    bounded("draws in vain", [&] {
      auto from = engine_.run(p);
      try {
        from.next();
        FAIL() << "there was a sample";
      } catch (const failure& f) {
        EXPECT_EQ(f.kind(), errc::no_samples) << f.what();
      }
    });
  }
  // Stages may draw many shards before they yield anything.
  shard_index index{.shards = {{.url = "memory:e0", .samples = per_epoch / 4, .blocks = {}}}};
  for (std::uint32_t i = 0; i <= per_epoch / 4; ++i) index.shards[0].blocks.push_back(4 * i);
  auto windows = engine_.run(indexed_shards(index, {.lanes = 1, .mode = epoch_mode::resample}) |
                             window_shuffle({.samples = 10'000}));
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(windows.next());
  // A window of more shards than two passes have, of which a stage keeps some.
  auto some = engine_.run(indexed_shards(index, {.lanes = 1, .mode = epoch_mode::resample}) |
                          window_shuffle({.samples = 10'000}) |
                          select([](const sample& s) { return s.key.ends_with('3'); }));
  for (int i = 0; i < 3000; ++i) ASSERT_TRUE(some.next());
  auto shuffled = engine_.run(drawn({"memory:e0"}) | shuffle({.samples = 10'000}) | select(all));
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(shuffled.next());
  // Errors count as items: the stage that skips them receives them.
  store_->put("broken", "no archive");
  auto broken = engine_.run(drawn({"memory:broken"}) | on_error(skip_errors()));
  EXPECT_THROW(broken.next(), failure);
  // One shard with samples among many without is enough.
  std::vector<std::string> urls(50, "memory:none");
  urls.emplace_back("memory:e0");
  auto from = engine_.run(drawn(urls) | shuffle({.samples = 1000}));
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(from.next());
}

// After the error for data without samples, the resumed run reports it again.
TEST_F(EmptyEpochs, OfAllTheDataAreToldAgainWhereTheRunIsResumed) {
  store_->put("none", testing::tar_builder().file("README", "no sample").end().str());
  const auto of = [](const std::vector<std::string>& urls, int rank = 0, int world = 1) {
    return shards(urls, {.rank = rank, .world_size = world, .lanes = 2, .shuffle = false}) |
           untar() | group_by_key();
  };
  const auto told = [](auto& data) {
    std::string why = "nothing";
    bounded("an epoch without samples", [&] {
      try {
        while (data.next()) {
        }
      } catch (const failure& f) {
        EXPECT_EQ(f.kind(), errc::no_samples) << f.what();
        why = f.what();
      }
    });
    return why;
  };
  const std::vector<std::string> none = {"memory:none", "memory:none"};
  const plan<sample> plans[] = {
      interleaved(of(none)),
      interleaved(of(none) | shuffle({.samples = 8})),
      interleaved(mix({{of(none)}, {of(none)}})),
      interleaved(of(none)) | map(same, {.threads = 2}) | prefetch(3),
      interleaved(of(none)) | epochs_of(5),
  };
  for (const auto& p : plans) {
    auto first = engine_.run(p);
    const std::string why = told(first);
    auto second = engine_.run(p);
    second.restore(first.save());
    EXPECT_EQ(told(second), why);
  }
  // Samples of another rank do not count for this one.
  std::vector<state> saved;
  for (const int rank : {0, 1}) {
    auto data = engine_.run(of({"memory:e0", "memory:none"}, rank, 2));
    if (rank == 0) {
      data.next();
    } else {
      told(data);
    }
    saved.push_back(data.save());
  }
  auto again = engine_.run(of({"memory:e0", "memory:none"}, 1, 2));
  again.restore(merged(saved));
  EXPECT_NE(told(again), "nothing");
  // If errors were skipped before, they are named.
  const auto lost = of({"memory:missing", "memory:none"}) | on_error(skip_errors());
  auto skips = engine_.run(lost);
  EXPECT_THROW(skips.next(), failure);
  auto resumed = engine_.run(lost);
  resumed.restore(skips.save());
  EXPECT_NE(told(resumed).find("1 error"), std::string::npos);
}

// A user-defined head in place of read_samples() also yields samples.
TEST_F(EmptyEpochs, OfStagesOfOnesOwnAreNotInVain) {
  class one_of_each final : public stream<sample> {
   public:
    one_of_each(lane_context& lane, std::unique_ptr<stream<shard_ref>> from)
        : lane_(lane), from_(std::move(from)) {}
    awaitable<outcome> next() override {
      auto shard = co_await from_->next();
      if (!shard) co_return shard.error();
      if (!*shard) co_return std::optional<sample>();
      ++lane_.drawn->items;
      co_return sample{.key = "whole", .fields = {}, .where = {}, .url = {}};
    }
    void save(state& to) const override { from_->save(to); }
    void restore(const state& from) override { from_->restore(from); }

   private:
    lane_context& lane_;
    std::unique_ptr<stream<shard_ref>> from_;
  };
  const lane_stage<shard_ref, sample> singly{
      .name = "singly",
      .wrap = [](lane_context& lane,
                 std::unique_ptr<stream<shard_ref>> from) -> std::unique_ptr<stream<sample>> {
        return std::make_unique<one_of_each>(lane, std::move(from));
      },
      .unchanged = true};
  const auto plan = shards({"memory:e0"}, {.lanes = 1, .mode = epoch_mode::resample}) | singly;
  auto data = engine_.run(plan);
  for (int i = 0; i < 2000; ++i) ASSERT_TRUE(data.next());
  // Samples that a stage held cannot be read again without a format.
  const auto held = plan | batched(3);
  auto first = engine_.run(held);
  ASSERT_TRUE(first.next());
  state saved = first.save();
  saved.hold(pending_record, std::array{origin{.lane = 0, .shard = 0, .epoch = 0}});
  auto again = engine_.run(held);
  try {
    again.restore(saved);
    again.next();
    FAIL();
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::usage) << f.what();
    EXPECT_NE(f.why().what_to_do().find("lane_stage.format"), std::string::npos) << f.what();
  }
}

// After the data, ends come endlessly: stages that make epochs of epochs request a hundred in all,
// not a hundred times as many each.
class ends_counted final : public detail::passing<sample> {
 public:
  ends_counted(std::unique_ptr<stream<sample>> items, std::shared_ptr<int> ends)
      : passing(std::move(items)), ends_(std::move(ends)) {}
  awaitable<outcome> next() override {
    auto item = co_await items_->next();
    if (item && !*item) ++*ends_;
    co_return item;
  }

 private:
  std::shared_ptr<int> ends_;
};

TEST_F(EmptyEpochs, EpochsOfEpochsFindTheEndOfTheData) {
  const auto ends = std::make_shared<int>(0);
  const stage<sample, sample> counted{
      "counted", [ends](run_context&, std::unique_ptr<stream<sample>> items) {
        return std::make_unique<ends_counted>(std::move(items), ends);
      }};
  const auto p = interleaved(data()) | counted | epochs_of(50) | epochs_of(45) | repeated(2) |
                 prefetch(2) | map(same) | on_error(skip_up_to(1)) | batched(3) | unbatched() |
                 slice(0, 1000) | epochs_of(70) | epochs_of(60);
  bounded("epochs of epochs", [&] {
    auto from = engine_.run(p);
    std::vector<std::size_t> lengths;
    for (int i = 0; i < 6; ++i) lengths.push_back(testing::keys_of_epoch(from).size());
    EXPECT_EQ(lengths, (std::vector<std::size_t>{60, 40, 0, 0, 0, 0}));
    EXPECT_LT(*ends, 2000);
    auto resumed = engine_.run(p);
    resumed.restore(from.save());
    EXPECT_FALSE(resumed.next());
    EXPECT_FALSE(resumed.next());
  });
}

}  // namespace
}  // namespace millrace
