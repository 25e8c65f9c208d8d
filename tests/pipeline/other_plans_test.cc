// What a state says about a plan, and what ranks compare when they start. A plan that differs in
// anything that the order depends on is refused, or yields exactly the rest; ranks with different
// plans notice that, or yield each sample once together. Each input of a plan is varied by itself,
// for plain plans and for mixes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "engine/host/log.h"
#include "millrace/millrace.h"
#include "pipeline/state/merged.h"
#include "tests/support/loaders.h"
#include "tests/support/seeds.h"
#include "tests/support/tar_builder.h"

namespace millrace {
namespace {

using testing::text_shard;
using testing::with_memory_store;

enum class plan_kind { plain, windows, mix, mix_of_windows, mix_of_mixes };
enum class index_kind { nothing, lengths, offsets };

// Everything that a plan is made of; in a mix, that of its second source.
struct plan_inputs {
  std::vector<int> shards = {0, 1, 2, 3, 4};
  index_kind index = index_kind::offsets;
  int shorter = -1;       // the shard that has a sample less in the index
  bool has_names = true;  // whether the index has the samples' names
  std::uint64_t seed = 1;
  int lanes = 2;
  epoch_mode mode = epoch_mode::exact;
  bool shuffle_shards = true;
  std::size_t window = 12;
  std::uint64_t window_seed = 1;
  std::size_t held = 6;
  double weight = 2;
  mix_options mixed = {.seed = 1};
  bool in_other_order = false;  // the sources of the mix
};

struct variation {
  const char* what;
  std::function<void(plan_inputs&)> make;
};
const variation variations[] = {
    {"nothing", [](plan_inputs& /*i*/) {}},
    {"one shard less", [](plan_inputs& i) { i.shards.pop_back(); }},
    {"another shard", [](plan_inputs& i) { i.shards.back() = 5; }},
    {"another order of the list", [](plan_inputs& i) { std::swap(i.shards[0], i.shards[3]); }},
    {"no index", [](plan_inputs& i) { i.index = index_kind::nothing; }},
    {"an index of lengths", [](plan_inputs& i) { i.index = index_kind::lengths; }},
    {"an index of offsets", [](plan_inputs& i) { i.index = index_kind::offsets; }},
    {"another length", [](plan_inputs& i) { i.shorter = 1; }},
    {"another last length", [](plan_inputs& i) { i.shorter = 4; }},
    {"no names", [](plan_inputs& i) { i.has_names = false; }},
    {"another seed", [](plan_inputs& i) { i.seed = 7; }},
    {"one lane", [](plan_inputs& i) { i.lanes = 1; }},
    {"three lanes", [](plan_inputs& i) { i.lanes = 3; }},
    {"an equal epoch", [](plan_inputs& i) { i.mode = epoch_mode::equal; }},
    {"shards in a row", [](plan_inputs& i) { i.shuffle_shards = false; }},
    {"another window", [](plan_inputs& i) { i.window = 5; }},
    {"another seed of windows", [](plan_inputs& i) { i.window_seed = 8; }},
    {"another shuffle", [](plan_inputs& i) { i.held = 9; }},
    {"another weight", [](plan_inputs& i) { i.weight = 1; }},
    {"another seed of the mix", [](plan_inputs& i) { i.mixed.seed = 2; }},
    {"in turns", [](plan_inputs& i) { i.mixed.by = mix_options::order::round_robin; }},
    {"the sources in another order", [](plan_inputs& i) { i.in_other_order = true; }},
};

class OtherPlans : public ::testing::TestWithParam<plan_kind> {
 protected:
  OtherPlans() {
    set_log_level(log_level::quiet);
    std::vector<std::string> urls;
    for (int i = 0; i < 9; ++i) {
      store_->put(std::to_string(i), text_shard(100 * i, 3 + i % 3, 100));
      urls.push_back(fmt::format("memory:{}", i));
    }
    index_ = testing::index_of(eng_, urls);
  }
  ~OtherPlans() override { set_log_level(log_level::notice); }

  lane_plan<shard_ref> list_of(const plan_inputs& i, int rank, int world) const {
    std::vector<std::string> urls;
    shard_index index;
    for (const int s : i.shards) {
      auto shard = index_.shards[static_cast<std::size_t>(s)];
      urls.push_back(shard.url);
      if (s == i.shorter) {
        --shard.samples;
        shard.blocks.pop_back();
        shard.names.clear();
      }
      if (!i.has_names) shard.names.clear();
      if (i.index == index_kind::lengths) shard.blocks.clear();
      index.shards.push_back(std::move(shard));
    }
    shard_list_options o{.seed = i.seed,
                         .rank = rank,
                         .world_size = world,
                         .lanes = i.lanes,
                         .mode = i.mode,
                         .shuffle = i.shuffle_shards};
    if (i.index != index_kind::nothing)
      o.index = std::make_shared<const shard_index>(std::move(index));
    return shards(std::move(urls), o);
  }
  static lane_plan<sample> held(lane_plan<shard_ref> list, const plan_inputs& i) {
    return std::move(list) | untar() | group_by_key() | shuffle({.samples = i.held, .seed = 3});
  }
  static lane_plan<sample> in_windows(lane_plan<shard_ref> list, const plan_inputs& i) {
    return std::move(list) | window_shuffle({.samples = i.window, .seed = i.window_seed});
  }
  lane_plan<sample> plan_of(const plan_inputs& i, int rank = 0, int world = 1) const {
    plan_inputs other{.shards = {6, 7, 8}, .lanes = i.lanes};
    const auto mix_with = [&](lane_plan<sample> second, const mix_options& options) {
      std::vector<mix_source> sources = {{held(list_of(other, rank, world), other), 1},
                                         {std::move(second), i.weight}};
      if (i.in_other_order) std::swap(sources[0], sources[1]);
      return mix(std::move(sources), options);
    };
    switch (GetParam()) {
      case plan_kind::plain:
        return held(list_of(i, rank, world), i);
      case plan_kind::windows:
        return in_windows(list_of(i, rank, world), i);
      case plan_kind::mix:
        return mix_with(held(list_of(i, rank, world), i), i.mixed);
      case plan_kind::mix_of_windows:
        return mix_with(in_windows(list_of(i, rank, world), i), i.mixed);
      case plan_kind::mix_of_mixes:
        break;
    }
    // The variation is within the inner mix.
    const auto inner = mix_with(held(list_of(i, rank, world), i), i.mixed);
    other.shards = {5};
    return mix({{inner, 1}, {held(list_of(other, rank, world), other), 1}}, {.seed = 9});
  }
  std::vector<std::string> all_of(const lane_plan<sample>& plan) {
    auto data = eng_.run(plan);
    auto out = testing::keys_of_epoch(data);
    std::ranges::sort(out);
    return out;
  }
  // The plan, if it is accepted.
  std::optional<lane_plan<sample>> made(const plan_inputs& i, int rank = 0, int world = 1) {
    try {
      auto plan = plan_of(i, rank, world);
      eng_.run(plan);
      return plan;
    } catch (const failure& f) {
      EXPECT_EQ(f.kind(), errc::usage) << f.what();
      return std::nullopt;
    }
  }
  static std::vector<plan_inputs> bases() {
    std::vector<plan_inputs> out;
    for (const index_kind index : {index_kind::nothing, index_kind::lengths, index_kind::offsets}) {
      out.push_back({.index = index});
    }
    return out;
  }
  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(10'000);
  engine eng_{with_memory_store(store_)};
  shard_index index_;
};

TEST_P(OtherPlans, AreRefusedOrGiveTheRest) {
  int resumed = 0;
  int refused = 0;
  const auto check = [&](const plan_inputs& of, const plan_inputs& by, int items, bool is_same) {
    const auto plan = made(of);
    const auto other = made(by);
    if (!plan || !other) return;
    std::vector<std::string> got;
    auto first = eng_.run(*plan);
    for (int n = 0; n < items; ++n) {
      if (const auto s = first.next()) got.push_back(s->key);
    }
    auto second = eng_.run(*other);
    try {
      second.restore(state::from_json(first.save().to_json()).value());
    } catch (const failure& f) {
      EXPECT_EQ(f.kind(), errc::bad_state) << f.what();
      EXPECT_FALSE(is_same) << f.what();
      ++refused;
      return;
    }
    try {
      for (const sample& s : second) got.push_back(s.key);
    } catch (const failure& f) {  // a window is made when it is reached
      EXPECT_EQ(f.kind(), errc::bad_state) << f.what();
      EXPECT_FALSE(is_same) << f.what();
      ++refused;
      return;
    }
    ++resumed;
    // A plan that has not begun counts as none: it yields the other plan's own epoch.
    std::ranges::sort(got);
    EXPECT_EQ(got, all_of(items == 0 ? *other : *plan));
  };
  std::uint64_t place = 0;
  for (const plan_inputs& base : bases()) {
    for (const auto& [what, make] : variations) {
      plan_inputs other = base;
      make(other);
      const bool is_same = std::string_view(what) == "nothing";
      for (const int items : {0, 1, 4, 9, 14}) {
        if (!testing::is_taken(place++)) continue;
        SCOPED_TRACE(fmt::format("an index of kind {}, {}, after {} items",
                                 static_cast<int>(base.index), what, items));
        check(base, other, items, is_same);
        check(other, base, items, is_same);
      }
    }
  }
  EXPECT_GT(resumed, 20 / static_cast<int>(testing::every()));
  EXPECT_GT(refused, 50 / static_cast<int>(testing::every()));
}

TEST_P(OtherPlans, OfRanksAreNoticedOrGiveEachSampleOnce) {
  int noticed = 0;
  for (const plan_inputs& base : bases()) {
    if (!made(base)) continue;
    const auto expected = all_of(plan_of(base));
    for (const auto& [what, make] : variations) {
      SCOPED_TRACE(fmt::format("an index of kind {}, {}", static_cast<int>(base.index), what));
      plan_inputs other = base;
      make(other);
      const auto one = made(base, 0, 2);
      const auto two = made(other, 1, 2);
      if (!one || !two) continue;
      const auto fingerprint_of = [&](const lane_plan<sample>& plan) {
        return plan_fingerprint(eng_.run(plan).save());
      };
      if (fingerprint_of(*one) != fingerprint_of(*two)) {
        EXPECT_NE(std::string_view(what), "nothing");
        ++noticed;
        continue;
      }
      auto all = all_of(*one);
      const auto others = all_of(*two);
      all.insert(all.end(), others.begin(), others.end());
      std::ranges::sort(all);
      EXPECT_EQ(all, expected);
    }
  }
  EXPECT_GT(noticed, 5);
}

INSTANTIATE_TEST_SUITE_P(Kinds, OtherPlans,
                         ::testing::Values(plan_kind::plain, plan_kind::windows, plan_kind::mix,
                                           plan_kind::mix_of_windows, plan_kind::mix_of_mixes));

}  // namespace
}  // namespace millrace
