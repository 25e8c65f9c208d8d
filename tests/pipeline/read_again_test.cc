// Samples that a restored run reads again pass the stages of their lanes as before, with the same
// origin: whatever a stage makes of them, in lanes and in mixes, nested ones too.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <span>

#include "engine/host/log.h"
#include "millrace/millrace.h"
#include "pipeline/shards/redeal.h"
#include "pipeline/state/merged.h"
#include "tests/support/loaders.h"
#include "tests/support/seeds.h"
#include "tests/support/text_shards.h"

namespace millrace {
namespace {

using testing::with_memory_store;

// Writes each sample's origin into the names of its fields.
sample_stage stamped() {
  return {"stamped", [](sample s) -> result<std::optional<sample>> {
            const origin& o = s.where;
            for (field& f : s.fields) {
              f.extension += fmt::format(" seen in lane {} at {}/{} of epoch {}, {}", o.lane,
                                         o.shard, o.offset, o.epoch, o.position);
            }
            return std::optional(std::move(s));
          }};
}

sample_stage without_odd_places() {
  return select([](const sample& s) {
    return (s.where.epoch + s.where.shard + s.where.offset / 512) % 3 != 1;
  });
}

class drawn_lanes {
 public:
  drawn_lanes(std::uint64_t seed, memory_store& store)
      : random_(seed, purpose::fake_data), store_(store), seed_(seed) {
    options_ = {
        .seed = seed, .lanes = pick(1, 3), .epochs = pick(1, 4), .first_epoch = chance(4) ? 5 : 0};
    plan_ = interleaved(drawn(2));
    if (chance(2)) plan_ = held(" | map", std::move(plan_) | map(same, {.threads = pick(1, 3)}));
    if (chance(3)) plan_ = held(" | epochs_of", std::move(plan_) | epochs_of(pick(1, 9)));
    if (chance(2)) plan_ = held(" | prefetch", std::move(plan_) | prefetch(pick(1, 4)));
  }

  int pick(int least, int most) {
    return least + static_cast<int>(random_.below(static_cast<std::uint32_t>(most - least + 1)));
  }
  bool chance(int of) { return pick(1, of) == 1; }
  const plan<sample>& what() const { return plan_; }
  const std::string& text() const { return text_; }

 private:
  static sample same(sample s) { return s; }
  plan<sample> held(std::string_view by, plan<sample> p) {
    text_ += by;
    return p;
  }

  lane_plan<sample> drawn(int mixes_within) {
    text_ += " (";
    auto out = mixes_within > 0 && chance(2) ? mixed(mixes_within - 1) : list(options_);
    const int shuffled_before = pick(0, 5);
    const int stages = pick(0, 3);
    for (int i = 0; i <= stages; ++i) {
      if (i == shuffled_before) {
        text_ += " | shuffle";
        out = std::move(out) |
              shuffle({.samples = static_cast<std::size_t>(pick(1, 12)), .seed = seed_});
      }
      if (i < stages) out = with_stage(std::move(out));
    }
    text_ += ")";
    return out;
  }

  lane_plan<sample> with_stage(lane_plan<sample> front) {
    switch (pick(0, 2)) {
      case 0:
        text_ += " | select_part";
        return std::move(front) | select_part(0.8, seed_);
      case 1:
        text_ += " | without_odd_places";
        return std::move(front) | without_odd_places();
      default:
        text_ += " | stamped";
        return std::move(front) | stamped();
    }
  }

  lane_plan<sample> list(const shard_list_options& o) {
    std::vector<std::string> urls;
    for (int n = pick(3, 5); n > 0; --n) {
      const std::string name = fmt::format("w{}", shards_);
      store_.put(name, testing::text_shard(100 * shards_++, pick(1, 6), 50));
      urls.push_back("memory:" + name);
    }
    text_ += fmt::format("{} shards", urls.size());
    return shards(std::move(urls), o) | untar() | group_by_key();
  }

  // Sources have different lengths, so that those that continue beyond an epoch of the mix are in
  // other epochs than the mix; some of them never end.
  lane_plan<sample> mixed(int mixes_within) {
    const bool first_ends = chance(2);
    text_ += first_ends ? "mix until the first ends:" : "mix:";
    std::vector<mix_source> parts;
    parts.push_back({drawn(mixes_within)});
    for (int n = pick(1, 2); n > 0; --n) {
      shard_list_options endless = options_;
      endless.mode = epoch_mode::resample;
      endless.first_epoch += pick(0, 2);
      const bool never_ends = first_ends && chance(2);
      if (never_ends) text_ += " endless ";
      parts.push_back({never_ends ? list(endless) | stamped() : drawn(mixes_within),
                       static_cast<double>(pick(1, 3))});
    }
    return mix(std::move(parts),
               {.seed = seed_,
                .by = chance(2) ? mix_options::order::round_robin : mix_options::order::random,
                .ends = first_ends ? mix_options::until::first_ends : mix_options::until::all_end});
  }

  random_stream random_;
  memory_store& store_;
  std::uint64_t seed_;
  shard_list_options options_;
  int shards_ = 0;
  plan<sample> plan_;
  std::string text_;
};

std::string name_of(const sample& s) {
  std::string out = fmt::format("{} {}", s.where.epoch, s.key);
  for (const field& f : s.fields) out += " ." + f.extension;
  return out;
}

std::vector<std::string> rest_of(loader<sample>& data) {
  constexpr int enough_ends = 5;
  std::vector<std::string> out;
  for (int ends = 0; ends < enough_ends;) {
    const auto s = data.next();
    ends = s ? 0 : ends + 1;
    out.push_back(s ? name_of(*s) : "end");
  }
  while (!out.empty() && out.back() == "end") out.pop_back();
  return out;
}

class ReadAgain : public ::testing::Test {
 protected:
  ReadAgain() { set_log_level(log_level::quiet); }
  ~ReadAgain() override { set_log_level(log_level::notice); }
};

TEST_F(ReadAgain, SamplesPassTheStagesOfTheirLanesAsAtFirst) {
  for (const std::uint64_t seed : testing::seeds(60)) {
    const auto store = std::make_shared<memory_store>(4'000);
    drawn_lanes drawn(seed, *store);
    SCOPED_TRACE(fmt::format("replay: TEST_SEED={}\n{}", seed, drawn.text()));
    engine eng(with_memory_store(store));
    std::vector<std::string> whole;
    {
      auto data = eng.run(drawn.what());
      whole = rest_of(data);
    }
    for (int cuts = 0; cuts < 5; ++cuts) {
      const int cut = drawn.pick(0, static_cast<int>(whole.size()));
      auto first = eng.run(drawn.what());
      for (int i = 0; i < cut; ++i) first.next();
      auto second = eng.run(drawn.what());
      second.restore(state::from_json(first.save().to_json()).value());
      ASSERT_EQ(rest_of(second), std::vector(whole.begin() + cut, whole.end()))
          << "cut after " << cut << " of " << whole.size();
    }
  }
}

// What follows a lane's part of a shard belongs to another lane, damaged or not.
TEST_F(ReadAgain, ThePartOfAnotherLaneNeedNotBeWhole) {
  constexpr int samples = 12;
  auto store = std::make_shared<memory_store>(1'000);
  std::string shard = testing::text_shard(0, samples, 50);
  store->put("t", shard);
  engine eng(with_memory_store(store));
  const auto index = std::make_shared<const shard_index>(testing::index_of(eng, {"memory:t"}));
  for (const int first_damaged : {samples / 2, samples / 2 + 1}) {
    std::string damaged = shard;
    damaged[index->shards[0].blocks[static_cast<std::size_t>(first_damaged)] *
            static_cast<std::size_t>(shard_index::block_bytes)] ^= 1;
    store->put("t", damaged);
    const auto of_lanes = [&](int lanes) {
      return interleaved(shards({"memory:t"}, {.lanes = lanes, .shuffle = false, .index = index}) |
                         untar() | group_by_key() | shuffle({.samples = 100, .seed = 1})) |
             on_error(skip_errors());
    };
    auto whole = eng.run(of_lanes(2));
    const auto wanted = testing::keys_of_epoch(whole);
    ASSERT_GE(wanted.size(), samples / 2);
    for (std::size_t cut = 0; cut < wanted.size(); ++cut) {
      auto first = eng.run(of_lanes(2));
      std::vector<std::string> got;
      for (std::size_t i = 0; i < cut; ++i) got.push_back(first.next()->key);
      const state saved = first.save();
      for (const int lanes : {2, 1}) {
        auto second = eng.run(of_lanes(lanes));
        second.restore(
            lanes == 2 ? saved
                       : redealt(merged(std::span(&saved, 1)), lanes, testing::usual_records()));
        auto all = got;
        for (auto& key : testing::keys_of_epoch(second)) all.push_back(std::move(key));
        const std::string what = fmt::format("{} taken, damaged at {}", cut, first_damaged);
        if (lanes == 2) {
          EXPECT_EQ(all, wanted) << what;
          continue;
        }
        // Read as one part, the sample before the damage may be one that continues within it.
        const std::set<std::string> once(all.begin(), all.end());
        EXPECT_EQ(once.size(), all.size()) << what;
        EXPECT_GE(once.size() + 1, wanted.size()) << what;
      }
    }
  }
}

// A sample was yielded, and the shard is cut after it, at any byte of what follows.
TEST_F(ReadAgain, WhatIsCutBehindASampleIsNoMatterOfTheSample) {
  constexpr int samples = 3;
  const auto store = std::make_shared<memory_store>(1'000);
  const std::string shard = testing::text_shard(0, samples, 50);
  store->put("t", shard);
  engine eng(with_memory_store(store));
  const auto index = std::make_shared<const shard_index>(testing::index_of(eng, {"memory:t"}));
  const auto same = [](sample s) { return s; };
  const auto begin =
      static_cast<std::size_t>(index->shards[0].blocks[samples - 1] * shard_index::block_bytes);
  for (std::size_t cut = begin; cut < begin + 1100; ++cut) {
    if (!testing::is_taken(cut)) continue;
    store->put("t", shard.substr(0, cut));
    for (const int lanes : {1, samples}) {
      const auto p = shards({"memory:t"}, {.lanes = lanes, .shuffle = false, .index = index}) |
                     untar() | group_by_key() | shuffle({.samples = 4, .seed = 1}) |
                     map(same, {.threads = 2}) | on_error(skip_errors());
      auto unbroken = eng.run(p);
      const auto wanted = testing::keys_of_epoch(unbroken);
      ASSERT_FALSE(wanted.empty()) << cut;
      for (std::size_t n = 0; n < wanted.size(); ++n) {
        auto first = eng.run(p);
        std::vector<std::string> got;
        for (std::size_t i = 0; i < n; ++i) got.push_back(first.next()->key);
        auto second = eng.run(p);
        second.restore(first.save());
        for (auto& key : testing::keys_of_epoch(second)) got.push_back(std::move(key));
        EXPECT_EQ(got, wanted) << "cut at " << cut << ", saved after " << n << ", " << lanes;
      }
    }
  }
}

}  // namespace
}  // namespace millrace
