// Resuming with the least memory that a plan accepts: no run waits forever, and every sample comes
// exactly once.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <span>

#include "millrace/millrace.h"
#include "pipeline/state/merged.h"
#include "pipeline/state/records.h"
#include "tests/support/draws.h"
#include "tests/support/loaders.h"
#include "tests/support/packed.h"
#include "tests/support/seeds.h"
#include "tests/support/tar_builder.h"
#include "tests/support/watchdog.h"

namespace millrace {
namespace {

using testing::keys_of_epoch;
using testing::text_shard;
using testing::watchdog;
using testing::with_memory_store;

class LeastMemory : public ::testing::TestWithParam<int> {
 protected:
  LeastMemory() {
    shards_ = pick(1, 4);
    // Slightly more than pages, where more is charged than the payload; and small ones.
    payload_ = static_cast<std::size_t>(one_of({200, 3'000, 65'600, 70'000, 150'000, 300'000}));
    for (int i = 0; i < shards_; ++i) {
      const int samples = pick(8, payload_ > 100'000 ? 24 : 40);
      store_->put(std::to_string(i), text_shard(i * 100, samples, payload_));
      urls_.push_back("memory:" + std::to_string(i));
      for (int k = 0; k < samples; ++k) all_.push_back(fmt::format("s{:06}", i * 100 + k));
    }
    lanes_ = one_of({1, 1, 2, 4, 16, 64});
    threads_ = one_of({0, 1, 3, 16, 64});
    held_ = pick(0, 2) == 0 ? 0 : static_cast<std::size_t>(pick(1, 200));
    seed_ = static_cast<std::uint64_t>(pick(0, 1000));
  }

  int pick(int least, int most) { return drawn_.pick(least, most); }
  int one_of(const std::vector<int>& from) { return drawn_.one_of(from); }
  plan<sample> plan_of(int lanes, int rank = 0, int world = 1) const {
    auto head = shards(urls_, {.seed = seed_, .rank = rank, .world_size = world, .lanes = lanes}) |
                untar() | group_by_key();
    if (held_ > 0) head = head | shuffle({.samples = held_, .seed = seed_});
    return head | map([](sample s) { return s; }, {.threads = threads_});
  }
  engine_options options(std::size_t memory) const {
    auto o = with_memory_store(store_, std::max(threads_, 1), memory);
    o.source.chunk_bytes = 256_KiB;
    return o;
  }
  // The number named by the refusal.
  std::size_t least_memory(int lanes) const {
    return testing::least_memory(options(1), plan_of(lanes));
  }
  std::string described() const {
    return fmt::format("{} shards, {} samples of {}, {} lanes, {} held, {} threads, seed {}",
                       shards_, all_.size(), payload_, lanes_, held_, threads_, seed_);
  }

  testing::draws drawn_{GetParam(), 7};
  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(100'000);
  std::vector<std::string> urls_;
  std::vector<std::string> all_;
  int shards_ = 1;
  std::size_t payload_ = 1;
  int lanes_ = 1;
  int threads_ = 0;
  std::size_t held_ = 0;
  std::uint64_t seed_ = 0;
};

TEST_P(LeastMemory, ResumedAnywhereItGivesTheUninterruptedRest) {
  const watchdog watch(described());
  engine eng(options(least_memory(lanes_)));
  auto uninterrupted = eng.run(plan_of(lanes_));
  const auto expected = keys_of_epoch(uninterrupted);
  auto sorted = expected;
  std::ranges::sort(sorted);
  EXPECT_EQ(sorted, all_) << described();
  std::vector<std::string> got;
  state saved;
  // Stopped repeatedly, each time after a few samples.
  for (bool ended = false; !ended;) {
    auto data = eng.run(plan_of(lanes_));
    if (!got.empty()) data.restore(saved);
    const int steps = pick(1, static_cast<int>(all_.size()) / 2);
    for (int i = 0; i < steps && !ended; ++i) {
      auto s = data.next();
      ended = !s;
      if (s) got.push_back(s->key);
    }
    saved = state::from_json(data.save().to_json()).value();
  }
  EXPECT_EQ(got, expected) << described();
}

// A lane has room for one decoder: samples held by a shuffle are read again before its shard is
// opened.
TEST(LeastMemoryOfCompressedShards, ResumedAnywhereItFitsWhereTheRunDid) {
  const auto store = std::make_shared<memory_store>(100'000);
  std::vector<std::string> urls;
  for (int i = 0; i < 4; ++i) {
    const auto name = fmt::format("{}.tar.xz", i);
    // The dictionary has 8 MiB, whatever the length.
    store->put(name, testing::packed(text_shard(i * 100, 12, 100'000), ARCHIVE_FILTER_XZ,
                                     "xz:compression-level=6"));
    urls.push_back("memory:" + name);
  }
  const auto plan = shards(urls, {.seed = 3, .lanes = 2}) | untar() | group_by_key() |
                    shuffle({.samples = 16, .seed = 3}) | map([](sample s) { return s; });
  const auto keys_with = [&](std::size_t memory, const state* from) {
    engine eng(with_memory_store(store, 2, memory));
    auto data = eng.run(plan);
    if (from != nullptr) data.restore(*from);
    return keys_of_epoch(data);
  };
  // The least memory that the uninterrupted run accepts.
  std::size_t memory = 0;
  std::vector<std::string> expected;
  for (std::size_t tried = 16_MiB; expected.empty() && tried <= 512_MiB; tried += 2_MiB) {
    try {
      memory = tried;
      expected = keys_with(tried, nullptr);
    } catch (const failure& f) {
      ASSERT_TRUE(f.kind() == errc::no_memory || f.kind() == errc::too_large) << f.what();
    }
  }
  ASSERT_EQ(expected.size(), 48U);
  for (std::size_t stop = 0; stop < expected.size(); stop += 3) {
    std::vector<std::string> got;
    state saved;
    {
      engine eng(with_memory_store(store, 2, memory));
      auto data = eng.run(plan);
      for (std::size_t i = 0; i < stop; ++i) got.push_back(data.next()->key);
      saved = data.save();
    }
    for (auto& key : keys_with(memory, &saved)) got.push_back(std::move(key));
    EXPECT_EQ(got, expected) << "stopped at " << stop << " with " << format_bytes(memory);
  }
}

TEST_P(LeastMemory, ResumedByOtherLanesWithTheirLeastMemory) {
  const watchdog watch(described());
  const int other = one_of({1, 2, 8, 33});
  std::vector<std::string> got;
  state saved;
  {
    engine eng(options(least_memory(lanes_) * static_cast<std::size_t>(one_of({1, 4}))));
    auto data = eng.run(plan_of(lanes_));
    const int steps = pick(0, static_cast<int>(all_.size()));
    for (int i = 0; i < steps; ++i) {
      if (auto s = data.next()) got.push_back(s->key);
    }
    saved = state::from_json(data.save().to_json()).value();
  }
  const auto rest_with = [&](std::size_t memory) {
    engine eng(options(memory));
    auto data = eng.run(plan_of(other));
    data.restore(saved);
    for (auto& key : keys_of_epoch(data)) got.push_back(std::move(key));
  };
  try {
    rest_with(least_memory(other));
  } catch (const failure& f) {
    // At once, and only if there are lanes without shards.
    ASSERT_EQ(f.kind(), errc::no_memory) << f.what();
    ASSERT_GT(other, shards_) << f.what();
    rest_with(1_GiB);
  }
  std::ranges::sort(got);
  EXPECT_EQ(got, all_) << described() << ", then " << other << " lanes";
}

INSTANTIATE_TEST_SUITE_P(Seeds, LeastMemory, ::testing::Range(0, 24, testing::one_of_as_many));

// As many samples in flight as on a host with 64 threads, in a lane whose memory holds some.
TEST(Resume, WhatWasOnItsWayNeedsNoMoreMemoryThanOne) {
  const watchdog watch("128 samples of 150 kB on their way");
  auto store = std::make_shared<memory_store>(1'000'000);
  store->put("0", text_shard(0, 200, 150'000));
  engine eng(with_memory_store(store, 64, 64_MiB));
  const auto plan = shards({"memory:0"}, {.lanes = 1}) | untar() | group_by_key() |
                    map([](sample s) { return s; }, {.threads = 64});
  auto first = eng.run(plan);
  std::vector<std::string> got{first.next()->key};
  const state saved = first.save();
  auto second = eng.run(plan);
  second.restore(saved);
  for (auto& key : keys_of_epoch(second)) got.push_back(std::move(key));
  EXPECT_EQ(got.size(), 200U);
  std::ranges::sort(got);
  EXPECT_EQ(std::ranges::adjacent_find(got), got.end());
}

// A sample that was in flight is read again and copied into its lane's memory, which by then holds
// the next one: there is no room for both.
TEST(Resume, ALargeSampleThatWasOnItsWayIsReadAgainWithoutTheNextOne) {
  const watchdog watch("samples of 12 MB and of 6 MB on their way");
  // The first sample of a shard is in one piece, the second is not.
  auto store = std::make_shared<memory_store>(13'000'000);
  std::vector<std::string> urls;
  std::vector<std::string> all;
  for (int i = 0; i < 3; ++i) {
    testing::tar_builder shard;
    for (const int size : {12'000'000, 6'000'000}) {
      all.push_back(fmt::format("{}-{}", i, size));
      shard.file(all.back() + ".bin", std::string(static_cast<std::size_t>(size), 'v'));
    }
    store->put(std::to_string(i), shard.end().str());
    urls.push_back(fmt::format("memory:{}", i));
  }
  engine eng(with_memory_store(store, 4, 256_MiB));
  std::atomic<int> mapped = 0;
  const auto counted = [&mapped](sample s) {
    ++mapped;
    mapped.notify_one();
    return s;
  };
  const auto plan = shards(urls, {.lanes = 1, .shuffle = false}) | untar() | group_by_key() |
                    map(counted, {.threads = 4});
  auto first = eng.run(plan);
  std::vector<std::string> got{first.next()->key};
  for (int n = mapped; n < 3; n = mapped) mapped.wait(n);
  const state saved = first.save();
  EXPECT_GE(saved.held(pending_record).size(), 2U);
  auto second = eng.run(plan);
  second.restore(saved);
  for (auto& key : keys_of_epoch(second)) got.push_back(std::move(key));
  EXPECT_EQ(got, all);
}

// With samples that nearly fill a lane's memory for one, these do not fit together: a sample set
// aside by a shuffle, what the lane has read of the next one, and a sample that is read again.
TEST(Resume, AShuffleOfLargeSamplesGoesOn) {
  constexpr int samples = 9;
  for (const std::size_t size : {1'000'000U, 3'000'000U, 5'000'000U, 7'000'000U}) {
    for (const std::size_t members : {1U, 2U}) {
      auto store = std::make_shared<memory_store>(10'000'000);
      testing::tar_builder shard;
      for (int i = 0; i < samples; ++i) {
        for (std::size_t m = 0; m < members; ++m) {
          shard.file(fmt::format("{:03}.{}", i, m), std::string(size / members, 'v'));
        }
      }
      store->put("0", shard.end().str());
      engine eng(with_memory_store(store, 1, 256_MiB));
      const auto plan = shards({"memory:0"}, {.lanes = 1}) | untar() | group_by_key() |
                        shuffle({.samples = 1000, .bytes = 3 * size + size / 2});
      auto unbroken = eng.run(plan);
      const auto expected = keys_of_epoch(unbroken);
      ASSERT_EQ(expected.size(), samples);
      for (const std::size_t taken : {1U, 3U, 5U}) {
        const watchdog watch(fmt::format("{} B in {}, after {}", size, members, taken));
        auto first = eng.run(plan);
        for (std::size_t i = 0; i < taken; ++i) first.next();
        auto second = eng.run(plan);
        second.restore(first.save());
        const auto rest = keys_of_epoch(second);
        EXPECT_TRUE(std::ranges::equal(rest, std::span(expected).subspan(taken)))
            << size << " " << members << " " << taken;
      }
    }
  }
}

// A shuffle that is limited by memory counts what its samples are charged.
TEST(Resume, AShuffleCountsWhatIsCharged) {
  const watchdog watch("a shuffle of samples just beyond a page");
  auto store = std::make_shared<memory_store>(1'000'000);
  store->put("0", text_shard(0, 150, 65'540));
  engine eng(with_memory_store(store, 1, 64_MiB));
  auto data = eng.run(shards({"memory:0"}, {.lanes = 1}) | untar() | group_by_key() |
                      shuffle({.samples = 1000, .bytes = 4_MiB}));
  EXPECT_EQ(keys_of_epoch(data).size(), 150U);
}

// Everything held in a state must be used: a plan without the shuffle would lose samples.
TEST(Resume, AStateIsTakenWholeOrNotAtAll) {
  auto store = std::make_shared<memory_store>(10'000);
  store->put("0", text_shard(0, 60, 100));
  engine eng(with_memory_store(store));
  const auto head = shards({"memory:0"}, {.lanes = 1}) | untar() | group_by_key();
  auto first = eng.run(head | shuffle({.samples = 20}));
  for (int i = 0; i < 10; ++i) first.next();
  auto second = eng.run(head);
  try {
    second.restore(first.save());
    FAIL() << "20 samples would be lost";
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::bad_state);
    EXPECT_NE(f.why().message().find("lane0/shuffle"), std::string::npos) << f.why().message();
  }
  auto smaller = eng.run(head | shuffle({.samples = 5}));
  smaller.restore(first.save());
  EXPECT_EQ(keys_of_epoch(smaller).size(), 50U);
}

// With very little data, an item holds many epochs, and their ends.
TEST(Resume, AnItemMayHoldManyEnds) {
  auto store = std::make_shared<memory_store>(10'000);
  store->put("0", text_shard(0, 2, 100));
  engine eng(with_memory_store(store));
  const shard_list_options always{.lanes = 1, .shuffle = false, .epochs = 1'000'000};
  const auto p = shards({"memory:0"}, always) | untar() | group_by_key() | repeated(1'000'000) |
                 batched(24'000 / testing::every()) | unbatched();
  auto first = eng.run(p);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(first.next()->key, fmt::format("s{:06}", i % 2));
  auto second = eng.run(p);
  second.restore(first.save());
  for (int i = 5; i < 10; ++i) EXPECT_EQ(second.next()->key, fmt::format("s{:06}", i % 2));
}

// Older counting stages did not write the ends of upstream stages, their eighth number.
TEST(Resume, AStateOfAnOlderVersionIsTaken) {
  auto store = std::make_shared<memory_store>(10'000);
  store->put("0", text_shard(0, 60, 100));
  engine eng(with_memory_store(store));
  const auto p = shards({"memory:0"}, {.lanes = 1}) | untar() | group_by_key() |
                 shuffle({.samples = 20}) | epochs_of(25) | slice(0, 20);
  auto first = eng.run(p);
  for (int i = 0; i < 10; ++i) first.next();
  const state saved = first.save();
  state older;
  int of_counting = 0;
  for (auto [name, values] : saved.records()) {
    if (name.starts_with("slice") || name.starts_with("epochs_of")) {
      values.erase(values.begin() + 7);
      ++of_counting;
    }
    older.put(name, values);
  }
  for (const auto& [name, samples] : saved.all_held()) older.hold(name, samples);
  ASSERT_EQ(of_counting, 2);
  auto second = eng.run(p);
  second.restore(older);
  for (int epoch = 0; epoch < 2; ++epoch) EXPECT_EQ(keys_of_epoch(second), keys_of_epoch(first));
}

TEST(Resume, OneRankTwiceIsRefused) {
  auto store = std::make_shared<memory_store>(10'000);
  for (int i = 0; i < 4; ++i) store->put(std::to_string(i), text_shard(100 * i, 10, 100));
  engine eng(with_memory_store(store));
  const auto of_rank = [&](int rank, std::uint64_t seed) {
    auto data = eng.run(shards({"memory:0", "memory:1", "memory:2", "memory:3"},
                               {.seed = seed, .rank = rank, .world_size = 2}) |
                        untar() | group_by_key());
    data.next();
    return data.save();
  };
  EXPECT_NO_THROW(merged(std::vector{of_rank(0, 1), of_rank(1, 1)}));
  EXPECT_THROW(merged(std::vector{of_rank(0, 1), of_rank(1, 1), of_rank(0, 1)}), failure);
  // The number that ranks compare when they start.
  EXPECT_EQ(plan_fingerprint(of_rank(0, 1)), plan_fingerprint(of_rank(1, 1)));
  EXPECT_NE(plan_fingerprint(of_rank(0, 1)), plan_fingerprint(of_rank(1, 2)));
}

}  // namespace
}  // namespace millrace
