// Joined shards, resumed: whatever the companions, the samples are those of an unbroken run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/host/log.h"
#include "millrace/millrace.h"
#include "tests/support/draws.h"
#include "tests/support/loaders.h"
#include "tests/support/seeds.h"
#include "tests/support/stopping_store.h"
#include "tests/support/tar_builder.h"
#include "tests/support/watchdog.h"

namespace millrace {
namespace {

using testing::tar_builder;
using testing::text_shard;
using testing::with_memory_store;

// What a sample is: its key, and the names and contents of its fields.
constexpr auto content_of = [](const sample& s) {
  std::string out = s.key;
  for (const field& f : s.fields) out += fmt::format(" {}={}", f.extension, f.data.text());
  return out;
};

// Shards with companions of all kinds: in order, shuffled, with holes, with more samples than the
// main shard, with repeated keys.
class JoinedPlan : public ::testing::TestWithParam<int> {
 protected:
  JoinedPlan() {
    set_log_sink([](std::string_view) {});
    const int shards = pick(1, 6);
    missing_ = one_of({0, 1, 2}) == 0 ? missing_companion::skip : missing_companion::none;
    for (int i = 0; i < shards; ++i) {
      const int samples = pick(2, 12);
      urls_.push_back(fmt::format("memory:m/{}.tar", i));
      store_->put(fmt::format("m/{}.tar", i),
                  text_shard(i * 100, samples, static_cast<std::size_t>(pick(1, 2'000))));
      store_->put(fmt::format("c/{}.tar", i), companion(i * 100, samples));
      if (pick(0, 9) > 0) store_->put(fmt::format("d/{}.tar", i), companion(i * 100, samples, "b"));
    }
    lanes_ = one_of({1, 2, 3, 4, 8});
    held_ = pick(0, 2) == 0 ? 0 : static_cast<std::size_t>(pick(1, 40));
    threads_ = pick(0, 2);
    joins_ = pick(1, 2);
    held_bytes_ = pick(0, 2) == 0 ? 0 : static_cast<std::size_t>(pick(1, 6'000));
    add_whole_shard();
  }
  ~JoinedPlan() override { set_log_sink({}); }

  std::string companion(int first, int samples, const std::string& extension = "a") {
    std::vector<int> numbers;
    const int extra = pick(0, 3) == 0 ? 5 : 0;
    const int hole = pick(0, 2);
    for (int i = first; i < first + samples + extra; ++i) {
      if (hole > 0 || pick(0, 4) > 0) numbers.push_back(i);
    }
    if (pick(0, 2) == 0) {
      for (std::size_t i = numbers.size(); i > 1; --i)
        std::swap(numbers[i - 1],
                  numbers[static_cast<std::size_t>(pick(0, static_cast<int>(i) - 1))]);
    }
    if (!numbers.empty() && pick(0, 3) == 0) numbers.push_back(numbers.front());
    tar_builder out;
    int made = 0;
    for (const int i : numbers)
      out.file(fmt::format("s{:06}.{}", i, extension),
               fmt::format("{}/{} of {}{}", extension, ++made, i,
                           std::string(static_cast<std::size_t>(pick(0, 900)), '.')));
    return out.end().str();
  }
  int pick(int least, int most) { return drawn_.pick(least, most); }
  int one_of(const std::vector<int>& from) { return drawn_.one_of(from); }
  plan<sample> plan_of(shard_list_options o = {}) const {
    if (o.lanes == 0) o.lanes = lanes_;
    o.seed = 3;
    auto head = shards(urls_, o) | untar() | group_by_key() |
                join("memory:c/{}.tar", {.missing = missing_, .held_bytes = held_bytes_});
    if (joins_ == 2)
      head = head | join("memory:d/{}.tar",
                         {.missing = missing_companion::none, .held_bytes = held_bytes_});
    if (held_ > 0) head = head | shuffle({.samples = held_, .seed = 3});
    return head | map(testing::same, {.threads = threads_});
  }
  // No sample at all is an error, which other tests are about: a shard more, whose companion is
  // whole.
  void add_whole_shard() {
    urls_.push_back("memory:m/whole.tar");
    store_->put("m/whole.tar", text_shard(900, 3));
    tar_builder out;
    for (int i = 900; i < 903; ++i) out.file(fmt::format("s{:06}.a", i), "whole");
    store_->put("c/whole.tar", out.end().str());
  }

  testing::draws drawn_{GetParam(), 11};
  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(1'500);
  std::vector<std::string> urls_;
  missing_companion missing_ = missing_companion::none;
  int lanes_ = 1;
  int threads_ = 0;
  int joins_ = 1;
  std::size_t held_ = 0;
  std::size_t held_bytes_ = 0;
};

TEST_P(JoinedPlan, ResumedAfterAnySampleItGivesTheRest) {
  const testing::watchdog watch("resumed joins");
  engine eng(with_memory_store(store_));
  auto whole = eng.run(plan_of({.epochs = 2}));
  const auto expected = testing::names_of(whole, content_of);
  const auto alone = whole.counts().companions_alone;
  for (std::size_t stop = 0; stop < expected.size(); stop += testing::every()) {
    auto first = eng.run(plan_of({.epochs = 2}));
    std::vector<std::string> got;
    for (std::size_t i = 0; i < stop; ++i) {
      const auto item = first.next();
      got.push_back(item ? content_of(*item) : "end");
    }
    auto second = eng.run(plan_of({.epochs = 2}));
    second.restore(state::from_json(first.save().to_json()).value());
    for (auto& rest : testing::names_of(second, content_of)) got.push_back(std::move(rest));
    ASSERT_EQ(got, expected) << "stopped at " << stop;
    EXPECT_LE(second.counts().companions_alone, alone);
  }
}

TEST_P(JoinedPlan, StoppedAtAnyReadAndResumedItGivesTheRest) {
  const testing::watchdog watch("stopped joins");
  testing::stop_at_read at;
  engine eng(testing::with_stopping_store(store_, at));
  testing::expect_stoppable(eng, at, plan_of({.epochs = 2}), content_of, drawn_);
}

TEST_P(JoinedPlan, ResumedByOtherRanksEachRemainingSampleComesOnce) {
  const testing::watchdog watch("other ranks");
  engine eng(with_memory_store(store_));
  auto whole = eng.run(plan_of());
  auto all = testing::names_of(whole, content_of);
  std::ranges::sort(all);
  const int ranks = std::min(lanes_, static_cast<int>(urls_.size()));
  for (int before = 1; before <= ranks; ++before) {
    for (int after = 1; after <= ranks; ++after) {
      std::vector<state> saved;
      std::vector<std::string> got = {"end"};
      const int steps = pick(0, 8);
      for (int r = 0; r < before; ++r) {
        auto data = eng.run(plan_of({.rank = r, .world_size = before}));
        for (int i = 0; i < steps; ++i) {
          const auto s = data.next();
          if (!s) break;
          got.push_back(content_of(*s));
        }
        saved.push_back(data.save());
      }
      const int lanes = pick(0, 1) == 0 ? lanes_ : lanes_ + after;
      try {
        for (int r = 0; r < after; ++r) {
          auto data = eng.run(plan_of({.rank = r, .world_size = after, .lanes = lanes}));
          data.restore(merged(saved));
          while (auto s = data.next()) got.push_back(content_of(*s));
        }
      } catch (const failure& f) {
        // Ranks that ended the epoch and others that did not need the same number of lanes.
        ASSERT_TRUE(f.kind() == errc::bad_state && lanes != lanes_) << f.what();
        continue;
      }
      std::ranges::sort(got);
      ASSERT_EQ(got, all) << before << " to " << after;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, JoinedPlan, ::testing::Range(0, 24, testing::one_of_as_many));

// With the least memory that a plan accepts no run waits forever, whatever the sizes of fields, and
// resumed it gives the rest.
class LeastMemoryJoined : public ::testing::TestWithParam<int> {
 protected:
  int pick(int least, int most) { return drawn_.pick(least, most); }
  int one_of(const std::vector<int>& from) { return drawn_.one_of(from); }

  testing::draws drawn_{GetParam(), 12};
};

TEST_P(LeastMemoryJoined, ResumedItGivesTheRest) {
  const testing::watchdog watch("joins with the least memory");
  const auto store = std::make_shared<memory_store>(100'000);
  std::vector<std::string> urls;
  const int payload = one_of({100, 70'000, 300'000});
  const int other = one_of({100, 70'000, 300'000});
  const int n = pick(1, 3);
  for (int i = 0; i < n; ++i) {
    const int samples = pick(6, 24);
    urls.push_back(fmt::format("memory:m/{}.tar", i));
    store->put(fmt::format("m/{}.tar", i),
               text_shard(i * 100, samples, static_cast<std::size_t>(payload)));
    tar_builder out;
    for (int k = 0; k < samples; ++k) {
      // In order, or in pairs the other way round.
      const int at = samples % 2 == 0 && i % 2 == 1 ? k ^ 1 : k;
      out.file(fmt::format("s{:06}.a", i * 100 + at),
               std::string(static_cast<std::size_t>(other), static_cast<char>('a' + at)));
    }
    store->put(fmt::format("c/{}.tar", i), out.end().str());
  }
  const int lanes = one_of({1, 2, 8});
  const int threads = one_of({0, 1, 3, 16});
  const auto held = static_cast<std::size_t>(one_of({0, 5, 100}));
  const int ahead = one_of({0, 2, 40});
  const auto plan = [&] {
    auto head = shards(urls, {.lanes = lanes}) | untar() | group_by_key() | join("memory:c/{}.tar");
    if (held > 0) head = head | shuffle({.samples = held});
    const auto mapped = head | map(testing::same, {.threads = threads});
    return ahead > 0 ? mapped | prefetch(ahead) : mapped;
  }();
  const auto options = [&](std::size_t memory) {
    auto o = with_memory_store(store, std::max(threads, 1), memory);
    o.source.chunk_bytes = 256_KiB;
    return o;
  };
  const std::size_t memory = testing::least_memory(options(1), plan);
  engine eng(options(memory));
  const auto short_of = [](const sample& s) {
    const field* const f = s.find("a");
    return s.key + (f ? fmt::format("{}{}", f->data.text().front(), f->data.size()) : "");
  };
  auto whole = eng.run(plan);
  const auto expected = testing::names_of(whole, short_of);
  for (std::size_t stop = 0; stop < expected.size(); stop += 5) {
    auto first = eng.run(plan);
    std::vector<std::string> got;
    for (std::size_t i = 0; i < stop; ++i) {
      const auto item = first.next();
      got.push_back(item ? short_of(*item) : "end");
    }
    const state saved = first.save();
    first.stop();
    auto second = eng.run(plan);
    second.restore(saved);
    for (auto& rest : testing::names_of(second, short_of)) got.push_back(std::move(rest));
    ASSERT_EQ(got, expected) << "stopped at " << stop << ", " << format_bytes(memory);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, LeastMemoryJoined,
                         ::testing::Range(0, 16, testing::one_of_as_many));

class JoinedStates : public ::testing::Test {
 protected:
  JoinedStates() {
    for (int i = 0; i < 6; ++i) {
      store_->put(fmt::format("m/{}.tar", i), text_shard(i * 100, 30, 500));
      tar_builder captions;
      for (int k = 29; k >= 0; --k)
        captions.file(fmt::format("s{:06}.cap", i * 100 + k),
                      fmt::format("caption {}", i * 100 + k));
      store_->put(fmt::format("c/{}.tar", i), captions.end().str());
      urls_.push_back(fmt::format("memory:m/{}.tar", i));
    }
  }
  lane_plan<sample> lanes_of(shard_list_options o, const std::string& pattern = "memory:c/{}.tar",
                             std::size_t held = 40) const {
    o.lanes = 4;
    return shards(urls_, o) | untar() | group_by_key() | join(pattern) |
           shuffle({.samples = held, .seed = 9});
  }

  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(4'000);
  std::vector<std::string> urls_;
};

TEST_F(JoinedStates, AStretchIsPassedOver) {
  engine eng(with_memory_store(store_));
  auto data = eng.run(lanes_of({}) | map(testing::same));
  for (int i = 0; i < 17; ++i) data.next();
  const state at = data.save();
  std::vector<std::string> expected;
  for (int i = 0; auto s = data.next(); ++i) {
    if (i >= 25) expected.push_back(content_of(*s));
  }
  auto resumed = eng.run(lanes_of({}) | map(testing::same));
  resumed.restore(skipping(std::span(&at, 1), 25).of_ranks.front());
  std::vector<std::string> got;
  while (auto s = resumed.next()) got.push_back(content_of(*s));
  EXPECT_EQ(got, expected);
}

TEST_F(JoinedStates, OtherCompanionsAreAnotherPlan) {
  engine eng(with_memory_store(store_));
  auto data = eng.run(interleaved(lanes_of({})));
  data.next();
  const auto refuses = [&](const plan<sample>& other) {
    auto resumed = eng.run(other);
    try {
      resumed.restore(data.save());
    } catch (const failure& f) {
      return f.kind() == errc::bad_state;
    }
    return false;
  };
  const auto plan_of = [&](const std::string& pattern, const std::string& fields) {
    return interleaved(shards(urls_, {.lanes = 4}) | untar() | group_by_key() |
                       join(pattern, {.fields = fields}) | shuffle({.samples = 40, .seed = 9}));
  };
  EXPECT_FALSE(refuses(plan_of("memory:c/{}.tar", "")));
  EXPECT_TRUE(refuses(plan_of("memory:other/{}.tar", "")));
  EXPECT_TRUE(refuses(plan_of("memory:c/{}.tar", "cap")));
}

// With an index, what a broken main shard lacks is known, unless a join leaves samples out.
TEST_F(JoinedStates, LostSamplesAreCounted) {
  engine eng(with_memory_store(store_));
  const auto index = std::make_shared<const shard_index>(testing::index_of(eng, urls_));
  store_->put("m/2.tar", text_shard(200, 30, 500).substr(0, 10'000));
  const auto lost = [&](missing_companion missing) {
    auto data = eng.run(shards(urls_, {.lanes = 2, .index = index}) | untar() | group_by_key() |
                        join("memory:c/{}.tar", {.missing = missing}) | on_error(skip_errors()));
    while (data.next()) {
    }
    return data.counts().lost;
  };
  const std::uint64_t plain = lost(missing_companion::error);
  EXPECT_GT(plain, 10U);
  EXPECT_EQ(lost(missing_companion::none), plain);
  EXPECT_EQ(lost(missing_companion::skip), 0U);
}

// With an index, lanes are cut by samples: each reads its part of the companions.
TEST_F(JoinedStates, CutByAnIndex) {
  engine eng(with_memory_store(store_));
  const auto index = std::make_shared<const shard_index>(testing::index_of(eng, urls_));
  for (const epoch_mode mode : {epoch_mode::exact, epoch_mode::equal}) {
    testing::expect_resumable(eng, lanes_of({.mode = mode, .index = index}) | map(testing::same),
                              content_of, 13);
    auto data = eng.run(interleaved(lanes_of({.mode = mode, .index = index})));
    int n = 0;
    while (auto s = data.next()) n += s->find("cap") != nullptr ? 1 : 0;
    EXPECT_EQ(n, 180);
    EXPECT_EQ(data.counts().lost, 0U);
  }
}

TEST_F(JoinedStates, InAMix) {
  engine eng(with_memory_store(store_));
  const auto lanes = [&](const std::string& pattern) {
    return shards(urls_, {.lanes = 2}) | untar() | group_by_key() | join(pattern);
  };
  const auto both = mix({{lanes("memory:c/{}.tar"), 2}, {lanes("memory:c/{}.tar"), 1}}) |
                    shuffle({.samples = 30});
  testing::expect_resumable(eng, both | map(testing::same), content_of, 29);
}

TEST_F(JoinedStates, AMissingOneThatFailedCanBeAllowedWhenTheRunGoesOn) {
  store_->put("c/3.tar", tar_builder().file("s000300.cap", "one").end().str());
  engine eng(with_memory_store(store_));
  const auto plan_of = [&](missing_companion missing) {
    return interleaved(shards(urls_, {.lanes = 1, .shuffle = false}) | untar() | group_by_key() |
                       join("memory:c/{}.tar", {.missing = missing}));
  };
  auto data = eng.run(plan_of(missing_companion::error));
  int given = 0;
  try {
    while (data.next()) ++given;
    ADD_FAILURE();
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::missing_field);
  }
  EXPECT_EQ(given, 91);
  auto resumed = eng.run(plan_of(missing_companion::none));
  resumed.restore(data.save());
  while (resumed.next()) ++given;
  EXPECT_EQ(given, 180);
}

}  // namespace
}  // namespace millrace
