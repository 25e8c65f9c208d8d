// Properties of any plan, tested with random plans.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "millrace/millrace.h"
#include "pipeline/state/merged.h"
#include "tests/support/draws.h"
#include "tests/support/loaders.h"
#include "tests/support/seeds.h"
#include "tests/support/stopping_store.h"
#include "tests/support/tar_builder.h"

namespace millrace {
namespace {

using testing::key_of;
using testing::keys_of_epoch;
using testing::names_of;
using testing::text_shard;
using testing::with_memory_store;

class RandomPlan : public ::testing::TestWithParam<int> {
 protected:
  RandomPlan() {
    const int count = pick(1, 10);
    for (int i = 0; i < count; ++i) {
      const int samples = pick(1, 9);
      store_->put(std::to_string(i),
                  text_shard(i * 100, samples, static_cast<std::size_t>(pick(1, 3000))));
      urls_.push_back("memory:" + std::to_string(i));
      for (int k = 0; k < samples; ++k) all_.push_back(fmt::format("s{:06}", i * 100 + k));
    }
    lanes_ = one_of({1, 2, 3, 4, 6, 8, 12});
    held_ = pick(0, 3) == 0 ? 0 : static_cast<std::size_t>(pick(1, 60));
    threads_ = pick(0, 3);
    seed_ = static_cast<std::uint64_t>(pick(0, 1000));
  }

  int pick(int least, int most) { return drawn_.pick(least, most); }
  int one_of(const std::vector<int>& from) { return drawn_.one_of(from); }
  // World sizes for which the plan is possible without an index.
  std::vector<int> worlds() const {
    std::vector<int> out;
    for (int w = 1; w <= std::min(lanes_, static_cast<int>(urls_.size())); ++w) out.push_back(w);
    return out;
  }
  plan<sample> plan_of(shard_list_options o, int threads) const {
    o.seed = seed_;
    if (o.lanes == 0) o.lanes = lanes_;
    auto lanes = shards(urls_, o) | untar() | group_by_key();
    if (held_ > 0) lanes = lanes | shuffle({.samples = held_, .seed = seed_});
    const auto same = [](sample s) { return s; };
    return lanes | map(same, {.threads = threads});
  }
  plan<sample> plan_of(const shard_list_options& o) const { return plan_of(o, threads_); }

  std::string described() const {
    return fmt::format("{} shards, {} samples, {} lanes, {} held, {} threads, seed {}",
                       urls_.size(), all_.size(), lanes_, held_, threads_, seed_);
  }

  testing::draws drawn_{GetParam()};
  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(4'000);
  std::vector<std::string> urls_;
  std::vector<std::string> all_;  // keys, sorted
  int lanes_ = 1;
  std::size_t held_ = 0;
  int threads_ = 0;
  std::uint64_t seed_ = 0;
};

std::vector<std::string> sorted(std::vector<std::string> keys) {
  std::ranges::sort(keys);
  return keys;
}

TEST_P(RandomPlan, ExactEpochsHaveEachSampleOnceOverAllRanks) {
  engine eng(with_memory_store(store_));
  for (const int world : worlds()) {
    std::vector<std::string> got[2];
    for (int rank = 0; rank < world; ++rank) {
      auto data = eng.run(plan_of({.rank = rank, .world_size = world, .epochs = 2}));
      for (auto& epoch : got) {
        for (auto& key : keys_of_epoch(data)) epoch.push_back(std::move(key));
      }
      EXPECT_FALSE(data.next());
    }
    for (auto& epoch : got) {
      EXPECT_EQ(sorted(epoch), all_) << described() << ", " << world << " ranks";
    }
  }
}

TEST_P(RandomPlan, EqualEpochsHaveAsManyOnEveryRank) {
  engine eng(with_memory_store(store_));
  auto index = testing::index_of(eng, urls_);
  if (pick(0, 1) == 1) {
    for (auto& s : index.shards) s.blocks.clear();
  }
  const auto known = std::make_shared<const shard_index>(std::move(index));
  for (const epoch_mode mode : {epoch_mode::equal, epoch_mode::equal_repeating}) {
    for (const int world : {1, 2, 3, 4, 6}) {
      if (lanes_ % world != 0 || std::ssize(all_) < lanes_) continue;
      std::vector<std::string> got;
      for (int rank = 0; rank < world; ++rank) {
        auto data =
            eng.run(plan_of({.rank = rank, .world_size = world, .mode = mode, .index = known}));
        const auto keys = keys_of_epoch(data);
        const std::size_t lanes = static_cast<std::size_t>(lanes_);
        const std::size_t each =
            mode == epoch_mode::equal ? all_.size() / lanes : (all_.size() + lanes - 1) / lanes;
        EXPECT_EQ(keys.size() * static_cast<std::size_t>(world), each * lanes) << described();
        got.insert(got.end(), keys.begin(), keys.end());
      }
      std::ranges::sort(got);
      if (mode == epoch_mode::equal) {
        EXPECT_EQ(std::ranges::adjacent_find(got), got.end()) << described();
      } else {
        EXPECT_EQ(std::set(got.begin(), got.end()).size(), all_.size()) << described();
      }
    }
  }
}

TEST_P(RandomPlan, TheOrderIsTheSameForAnyThreadsBackendAndMemory) {
  std::set<std::vector<std::string>> orders;
  for (const int threads : {0, 1, 3}) {
    auto options = with_memory_store(store_, 1 + threads, threads == 1 ? 128_MiB : 256_MiB);
    options.io = threads == 0 ? io_backend::pread : io_backend::automatic;
    engine eng(options);
    auto data = eng.run(plan_of({.epochs = 2}, threads));
    orders.insert(names_of(data, key_of));
  }
  EXPECT_EQ(orders.size(), 1U) << described();
}

TEST_P(RandomPlan, ResumedAtAnyPointItGivesTheUninterruptedRest) {
  engine eng(with_memory_store(store_));
  testing::expect_resumable(eng, plan_of({.epochs = 2}), key_of, 1);
}

// Stopped within next(), at any read of any source, and resumed there.
TEST_P(RandomPlan, StoppedAtAnyReadAndResumedItGivesTheUninterruptedRest) {
  testing::stop_at_read at;
  engine eng(testing::with_stopping_store(store_, at));
  testing::expect_stoppable(eng, at, plan_of({.epochs = 2}), key_of, drawn_, described());
}

TEST_P(RandomPlan, ResumedByAnyRanksEachRemainingSampleComesOnce) {
  engine eng(with_memory_store(store_));
  for (const int before : worlds()) {
    const int steps = pick(0, static_cast<int>(all_.size()) / before);
    std::vector<state> saved;
    std::vector<std::string> given;
    for (int rank = 0; rank < before; ++rank) {
      auto data = eng.run(plan_of({.rank = rank, .world_size = before}));
      for (int i = 0; i < steps; ++i) {
        if (const auto s = data.next()) given.push_back(s->key);
      }
      saved.push_back(state::from_json(data.save().to_json()).value());
    }
    const state whole = merged(saved);
    const int after = one_of(worlds());
    const int lanes = pick(0, 1) == 0 ? lanes_ : std::max(after, pick(1, 12));
    auto got = given;
    for (int rank = 0; rank < after; ++rank) {
      auto data = eng.run(plan_of({.rank = rank, .world_size = after, .lanes = lanes}));
      data.restore(whole);
      for (auto& key : keys_of_epoch(data)) got.push_back(std::move(key));
    }
    EXPECT_EQ(sorted(got), all_) << described() << ": " << before << " ranks after " << steps
                                 << " steps, then " << after << " with " << lanes << " lanes";
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomPlan, ::testing::Range(0, 20, testing::one_of_as_many));

}  // namespace
}  // namespace millrace
