// Shards damaged at any block, read past the damage, by both readers of archives: wherever a run is
// saved, what came before and what comes after equal an unbroken run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stop_token>

#include "engine/host/log.h"
#include "io/files/memory_source.h"
#include "millrace/millrace.h"
#include "pipeline/formats/tar_samples.h"
#include "pipeline/state/records.h"
#include "tests/support/loaders.h"
#include "tests/support/seeds.h"
#include "tests/support/stopping_store.h"
#include "tests/support/tar_builder.h"

namespace millrace {
namespace {

using testing::every;
using testing::tar_builder;
using testing::with_memory_store;

constexpr std::size_t block_size = 512;
constexpr std::size_t most_events = 1000;

enum class head : std::uint8_t { untar_and_group, read_samples };

class DamagedPlaces : public ::testing::TestWithParam<head> {
 protected:
  DamagedPlaces() {
    set_log_level(log_level::quiet);
    for (int s = 0; s < 2; ++s) {
      tar_builder t;
      for (int i = 0; i < 4; ++i) {
        const auto key = fmt::format("s{}{}", s, i);
        t.file(key + ".a", std::string(static_cast<std::size_t>(100 + 150 * i), 'a'));
        if (i % 2 == 0) t.file("README", "of no sample");
        t.file(key + ".b", key);
      }
      shards_.push_back(t.end().str());
    }
    put(0, shards_[0]);
    put(1, shards_[1]);
  }
  ~DamagedPlaces() override { set_log_level(log_level::notice); }

  void put(std::size_t shard, const std::string& content) {
    store_->put(std::to_string(shard), content);
  }
  lane_plan<sample> what(int lanes) const {
    return samples_of(shards({"memory:0", "memory:1"}, {.lanes = lanes, .shuffle = false}));
  }
  static lane_plan<sample> samples_of(const lane_plan<shard_ref>& list) {
    const untar_options how{.resync = true};
    if (GetParam() == head::read_samples) return list | read_samples(tar_samples(how));
    return list | untar(how) | group_by_key();
  }

  // The result of one call: a sample, an error, or the end.
  template <class T>
  static std::string event_of(loader<T>& data) {
    try {
      const auto s = data.next();
      return s ? fmt::format("{}@{}", s->key, s->where.offset) : "end";
    } catch (const failure& f) {
      return f.what();
    }
  }
  template <class T>
  static std::vector<std::string> events_of(loader<T> data) {
    std::vector<std::string> out;
    do out.push_back(event_of(data));
    while (out.back() != "end" && out.size() < most_events);
    return out;
  }
  static state read_back(const state& s) { return state::from_json(s.to_json()).value(); }

  // An error comes again if the state was saved before the next call.
  void check_events(const std::string& told) { check_events(told, what(1)); }
  template <class P>
  void check_events(const std::string& told, const P& plan) {
    const auto expected = events_of(engine_.run(plan));
    ASSERT_LT(expected.size(), most_events) << told;
    auto whole = engine_.run(plan);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const bool failed = event_of(whole) == expected[i] && is_error(expected[i]);
      auto rest = engine_.run(plan);
      rest.restore(read_back(whole.save()));
      if (i + 1 == expected.size()) break;
      const auto from = expected.begin() + static_cast<std::ptrdiff_t>(failed ? i : i + 1);
      EXPECT_EQ(events_of(std::move(rest)), std::vector(from, expected.end()))
          << told << ", saved after event " << i;
    }
  }
  static bool is_error(const std::string& event) {
    return event != "end" && event.find('@') == event.npos;
  }

  // Skipping what fails: the counts also equal those of an unbroken run; with other lanes, the
  // samples do.
  void check_skipped(const std::string& told) {
    const auto plan_of = [&](int lanes) { return what(lanes) | on_error(skip_errors()); };
    const auto counted = [](const state& s) { return *s.find(skipped_record + of_rank(0, 1)); };
    auto unbroken = engine_.run(plan_of(1));
    const auto expected = testing::names_of(unbroken, testing::key_of);
    const auto counts = counted(unbroken.save());
    for (std::size_t n = 0; n < expected.size(); ++n) {
      for (const int lanes : {1, 2 + static_cast<int>(n % 2)}) {
        if (lanes > 1 && n == 0) continue;  // unknown what samples look like
        auto first = engine_.run(plan_of(1));
        std::vector<std::string> got;
        for (std::size_t i = 0; i < n; ++i) {
          const auto s = first.next();
          got.push_back(s ? s->key : "end");
        }
        auto second = engine_.run(plan_of(lanes));
        second.restore(read_back(first.save()));
        for (auto& key : testing::names_of(second, testing::key_of)) got.push_back(std::move(key));
        auto all = expected;
        if (lanes > 1) {
          std::ranges::sort(got);
          std::ranges::sort(all);
        }
        EXPECT_EQ(got, all) << told << ", saved after " << n << ", then " << lanes << " lanes";
        EXPECT_EQ(counted(second.save()), counts)
            << told << ", saved after " << n << ", then " << lanes << " lanes";
      }
    }
  }

  std::vector<std::string> shards_;
  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(4000);
  engine engine_{with_memory_store(store_)};
};

TEST_P(DamagedPlaces, SavedAnywhereTheRestIsThatOfAnUnbrokenRun) {
  for (std::size_t shard = 0; shard < shards_.size(); ++shard) {
    for (std::size_t at = 0; at < shards_[shard].size(); at += block_size * every()) {
      for (const std::size_t blocks : {1U, 4U}) {
        std::string damaged = shards_[shard];
        const std::size_t end = std::min(at + blocks * block_size, damaged.size());
        std::fill(damaged.begin() + static_cast<std::ptrdiff_t>(at),
                  damaged.begin() + static_cast<std::ptrdiff_t>(end), 'x');
        put(shard, damaged);
        const auto told = fmt::format("shard {}, {} blocks at {}", shard, blocks, at / block_size);
        check_events(told);
        check_skipped(told);
        if (HasFailure()) return;
      }
    }
    put(shard, shards_[shard]);
  }
}

// A sample of the next shard is never affected by the damage, whatever its fields.
TEST_P(DamagedPlaces, DamageEndsWithItsShard) {
  tar_builder other;
  for (int i = 0; i < 4; ++i) other.file(fmt::format("s1{}.c", i), "x");
  put(1, other.end().str());
  for (std::size_t at = 0; at < shards_[0].size(); at += block_size * every()) {
    put(0, shards_[0].substr(0, at) + std::string(shards_[0].size() - at, 'x'));
    const auto events = events_of(engine_.run(what(1)));
    for (int i = 0; i < 4; ++i) {
      const std::string one = fmt::format("s1{}@{}", i, i * 1024);
      EXPECT_EQ(std::ranges::count(events, one), 1) << "damaged from block " << at / block_size;
    }
    check_events(fmt::format("damaged from block {} on", at / block_size));
    if (HasFailure()) return;
  }
}

// In shards read by an index, damage does not prove that the index is wrong.
TEST_P(DamagedPlaces, WhatAnIndexDealsOutIsGivenBehindThem) {
  tar_builder tar;
  for (int i = 0; i < 10; ++i) tar.file(fmt::format("s{}.a", i), "x");
  const std::string& sound = tar.end().str();
  put(0, sound);
  const auto index = std::make_shared<shard_index>(testing::index_of(engine_, {"memory:0"}));
  for (const int lanes : {1, 2}) {  // a whole shard, and parts of it
    for (std::size_t at = block_size; at < sound.size(); at += block_size * every()) {
      std::string damaged = sound;
      damaged.replace(at, 1, "?");
      put(0, damaged);
      check_events(
          fmt::format("{} lanes, byte {}", lanes, at),
          interleaved(samples_of(shards(
              {"memory:0"}, {.lanes = lanes, .shuffle = false, .epochs = 1, .index = index}))));
      if (HasFailure()) return;
    }
  }
}

// The run may also be stopped while it continues after an error: that error was reported.
TEST_P(DamagedPlaces, StoppedAnywhereNothingIsLostOrToldAgain) {
  const auto index =
      std::make_shared<shard_index>(testing::index_of(engine_, {"memory:0", "memory:1"}));
  const auto plan = interleaved(samples_of(shards(
      {"memory:0", "memory:1"}, {.lanes = 3, .shuffle = false, .epochs = 1, .index = index})));
  const auto small_pieces = std::make_shared<memory_store>(block_size);
  testing::stop_at_read at;
  engine eng(testing::with_stopping_store(small_pieces, at));
  // Reads to the end, or to the stop at the n-th read: each error comes once.
  bool stopped_before = false;  // the last call of next()
  const auto given = [&](std::optional<state>& saved, int n) {
    auto data = eng.run(plan, at.after(n));
    if (saved) data.restore(*saved);
    std::vector<std::string> out;
    for (std::string event; event != "end" && !event.starts_with("stopped");) {
      stopped_before = n > 0 && at.reads() >= n;
      event = event_of(data);
      if (event != "end" && !event.starts_with("stopped")) out.push_back(event);
    }
    saved = read_back(data.save());
    return out;
  };
  small_pieces->put("1", shards_[1]);
  for (std::size_t block = 0; block * block_size < shards_[0].size(); block += every()) {
    std::string damaged = shards_[0];
    damaged.replace(block * block_size, 1, "?");
    small_pieces->put("0", damaged);
    std::optional<state> at_end;
    auto all = given(at_end, 0);
    std::ranges::sort(all);
    for (int n = 1; n <= 60; ++n) {
      std::optional<state> saved;
      auto got = given(saved, n);
      const bool nobody_asked_on = stopped_before;
      const auto rest = given(saved, 0);
      // An error comes again if the stop came before the next call.
      if (!got.empty() && is_error(got.back()) && nobody_asked_on) got.pop_back();
      got.insert(got.end(), rest.begin(), rest.end());
      std::ranges::sort(got);
      EXPECT_EQ(got, all) << "damaged at block " << block << ", stopped at read " << n;
    }
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(BothHeads, DamagedPlaces,
                         ::testing::Values(head::untar_and_group, head::read_samples));

}  // namespace
}  // namespace millrace
