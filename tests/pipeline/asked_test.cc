// loader::wait_for(): items that a consumer has asked for and not taken yet.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <latch>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/millrace.h"
#include "tests/support/draws.h"
#include "tests/support/loaders.h"
#include "tests/support/seeds.h"
#include "tests/support/text_shards.h"
#include "tests/support/watchdog.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;
using testing::bounded;
using testing::with_memory_store;

class Asked : public testing::text_shards {
 protected:
  static std::string name_of(const sample& s) { return s.key; }
  static std::string name_of(const group_of<sample>& g) {
    std::string out;
    for (const sample& s : g.items) out += s.key + " ";
    return out;
  }
  // What the next call gives: a name, "end" or an error.
  template <class T>
  static std::string next_of(loader<T>& data) try {
    const auto item = data.next();
    return item ? name_of(*item) : "end";
  } catch (const failure& f) {
    if (!f.why().is_skippable()) throw;
    return "error of " + f.why().sample_key();
  }
  // What all calls of two epochs give.
  template <class T>
  static std::vector<std::string> rest_of(loader<T>& data) {
    std::vector<std::string> out;
    for (int ends = 0; ends < 2;) {
      out.push_back(next_of(data));
      ends += out.back() == "end" ? 1 : 0;
    }
    return out;
  }
  template <class T>
  static void wait(loader<T>& data, std::size_t items = 1) {
    while (!data.wait_for(milliseconds(1000), items)) {
    }
  }
  // What next_ready() gives, as next_of().
  template <class T>
  static std::vector<std::string> some_of(loader<T>& data, std::size_t most) try {
    std::vector<std::string> out;
    for (const T& item : data.next_ready(most)) out.push_back(name_of(item));
    EXPECT_LE(out.size(), std::max<std::size_t>(most, 1));
    if (out.empty()) out.emplace_back("end");
    return out;
  } catch (const failure& f) {
    if (!f.why().is_skippable()) throw;
    return {"error of " + f.why().sample_key()};
  }

  // A run from the position of `data` gives what is left of `all`.
  template <class T>
  void expect_rest(loader<T>& data, const plan<T>& what, std::span<const std::string> left) {
    const state at = data.save();
    auto resumed = eng_.run(what);
    resumed.restore(state::from_json(at.to_json()).value());
    std::vector<std::string> rest;
    for (std::size_t i = 0; i < left.size(); ++i) rest.push_back(next_of(resumed));
    ASSERT_EQ(rest, std::vector<std::string>(left.begin(), left.end()));
  }

  // Asks, waits, takes and saves in any order: the same comes as by next() alone.
  template <class T>
  void expect_the_same(const plan<T>& what, int seed) {
    auto plain = eng_.run(what);
    const std::vector<std::string> all = rest_of(plain);
    ASSERT_GT(all.size(), 2U);
    const std::uint64_t delivered = plain.counts().delivered;
    testing::draws drawn(seed, 4);
    auto data = eng_.run(what);
    for (std::size_t at = 0; at < all.size();) {
      const auto most = static_cast<std::size_t>(drawn.one_of({0, 1, 2, 3, 7, 40}));
      switch (drawn.pick(0, 9)) {
        case 0:
          data.wait_for(milliseconds(0), most);
          break;
        case 1:
          wait(data, most);
          ASSERT_TRUE(data.wait_for(milliseconds(0), most + 1)) << "it was there";
          break;
        case 2:
          if (drawn.pick(0, 9) == 0) {
            // Until it is asked on, the position is before the item that failed.
            if (at > 0 && all[at - 1].starts_with("error")) wait(data, most);
            expect_rest(data, what, std::span(all).subspan(at));
            if (HasFatalFailure()) return;
          }
          break;
        case 3:
        case 4:
          ASSERT_EQ(next_of(data), all[at++]);
          break;
        default:
          for (const std::string& name : some_of(data, most)) ASSERT_EQ(name, all.at(at++));
      }
    }
    EXPECT_EQ(data.counts().delivered, delivered);
  }
  template <class T>
  void expect_the_same(const std::string& name, const plan<T>& what) {
    for (const std::uint64_t seed : testing::seeds(6)) {
      SCOPED_TRACE(name + " " + std::to_string(seed));
      bounded(name, [&] { expect_the_same(what, static_cast<int>(seed)); });
      if (HasFatalFailure()) return;
    }
  }

  engine eng_{with_memory_store(store_)};
};

lane_plan<sample> two_epochs(std::vector<std::string> urls) {
  return shards(std::move(urls), {.seed = 42, .lanes = 3, .epochs = 2}) | untar() | group_by_key();
}

// A stage of a program's own with a record: it leaves out every second item.
class every_second final : public detail::passing<sample> {
 public:
  using passing::passing;
  awaitable<outcome> next() override {
    for (;;) {
      auto item = co_await items_->next();
      if (!item || !*item || ++n_ % 2 == 0) co_return item;
    }
  }
  void save(state& to) const override {
    items_->save(to);
    to.put("every_second", {n_});
  }
  void restore(const state& from) override {
    items_->restore(from);
    n_ = from.find("every_second")->front();
  }

 private:
  std::int64_t n_ = 0;
};
stage<sample, sample> halved() {
  return {"every_second",
          [](run_context& /*run*/,
             std::unique_ptr<stream<sample>> items) -> std::unique_ptr<stream<sample>> {
            return std::make_unique<every_second>(std::move(items));
          }};
}

TEST_F(Asked, GivesTheSameInAnyOrderOfCalls) {
  const plan<sample> in_turn = interleaved(two_epochs(urls()));
  const plan<sample> shuffled =
      interleaved(two_epochs(urls()) | shuffle({.samples = 20, .seed = 1}));
  const auto same = [](sample s) { return s; };
  expect_the_same("samples", in_turn);
  expect_the_same("shuffled", shuffled);
  expect_the_same("in threads", shuffled | map(same, {.threads = 2}));
  expect_the_same("groups", in_turn | batched(7, true));
  expect_the_same("read ahead", in_turn | prefetch(4));
  expect_the_same("far ahead, within the epoch",
                  shuffled | prefetch({.items = 50, .within_epoch = true}));
  expect_the_same("groups, read ahead", shuffled | batched(7, true) | prefetch(3));
  expect_the_same("a stage with a record, read ahead", in_turn | halved() | prefetch(5));
}

TEST_F(Asked, GivesEachErrorInItsPlace) {
  const auto fails = [](sample s) -> result<sample> {
    if (s.key.back() == '3') return error(errc::bad_field, "a three").key(s.key).skippable();
    return s;
  };
  const plan<sample> failing = two_epochs(urls()) | map(fails);
  auto plain = eng_.run(failing);
  EXPECT_EQ(std::ranges::count(rest_of(plain), "error of s000003"), 2) << "once in each epoch";
  expect_the_same("errors", failing);
  expect_the_same("errors, read ahead", failing | prefetch(5));
  const plan<sample> passed_on = failing | on_error(fail_on_error());
  expect_the_same("errors that a policy passes on", passed_on);
  expect_the_same("errors that a policy passes on, read ahead", passed_on | prefetch(5));
}

TEST_F(Asked, WaitsAsLongAsItIsTold) {
  bounded("a latch", [&] {
    std::latch open(1);
    const auto waits = [&open](sample s) {
      open.wait();
      return s;
    };
    auto data = eng_.run(two_epochs(urls()) | map(waits, {.threads = 1}));
    EXPECT_FALSE(data.wait_for(milliseconds(0)));
    EXPECT_FALSE(data.wait_for(milliseconds(-1)));
    EXPECT_FALSE(data.wait_for(milliseconds(1)));
    open.count_down();
    EXPECT_TRUE(data.wait_for(milliseconds::max()));
    EXPECT_NE(next_of(data), "end");
  });
}

// The plan ends in prefetch(), so the position is there while the item is not: before the first
// one, after one, and after one that failed.
TEST_F(Asked, APositionIsNotWaitedForBehindAPrefetch) {
  for (const int opens_at : {0, 1, 2}) {
    bounded("a position", [&] {
      std::latch open(1);
      auto seen = std::make_shared<std::atomic<int>>(0);
      const auto waits = [&open, seen, opens_at](sample s) -> result<sample> {
        const int n = (*seen)++;
        if (n >= opens_at) open.wait();
        if (n == 1) return error(errc::bad_field, "the second").key(s.key).skippable();
        return s;
      };
      const auto plan_of = [&](auto function) {
        return interleaved(two_epochs(urls())) | map(function, {.threads = 1}) | prefetch(1);
      };
      auto data = eng_.run(plan_of(waits));
      std::vector<std::string> given;
      for (int i = 0; i < opens_at; ++i) given.push_back(next_of(data));
      EXPECT_FALSE(data.wait_for(milliseconds(0)));
      const state at = data.save();  // hangs here if it waits for the item
      open.count_down();
      auto resumed = eng_.run(plan_of([](sample s) { return s; }));
      resumed.restore(at);
      auto whole = eng_.run(plan_of([](sample s) { return s; }));
      for (int i = 0; i < opens_at; ++i) next_of(whole);
      EXPECT_EQ(rest_of(resumed), rest_of(whole)) << opens_at;
    });
  }
}

TEST_F(Asked, AStopIsHeededWhateverIsReady) {
  for (const int before : {0, 1, 5, 100}) {
    for (const std::size_t items : {1U, 4U}) {
      bounded("a stop", [&] {
        const plan<sample> what = interleaved(two_epochs(urls())) | prefetch(8);
        auto whole = eng_.run(what);
        auto data = eng_.run(what);
        for (int i = 0; i < before; ++i) ASSERT_EQ(next_of(data), next_of(whole));
        wait(data, items);
        data.stop();
        EXPECT_THROW(data.next(), failure);
        EXPECT_THROW(data.next_ready(items), failure);
        auto resumed = eng_.run(what);
        resumed.restore(data.save());
        EXPECT_EQ(rest_of(resumed), rest_of(whole));
      });
    }
  }
}

TEST_F(Asked, ALoaderThatWaitsForAnItemMayBeDestroyed) {
  for (const bool is_there : {false, true}) {
    bounded("destroyed", [&] {
      std::latch open(1);
      const auto waits = [&open](sample s) {
        open.wait();
        return s;
      };
      auto data = std::make_optional(eng_.run(two_epochs(urls()) | map(waits, {.threads = 1})));
      EXPECT_FALSE(data->wait_for(milliseconds(0)));
      open.count_down();
      if (is_there) wait(*data);
      data.reset();
    });
  }
  bounded("the engine goes on", [&] {
    auto data = eng_.run(two_epochs(urls()));
    EXPECT_NE(next_of(data), "end");
  });
}

// Counts are those of the items that were given, however far the stages are ahead.
TEST_F(Asked, CountsAreOfWhatWasGiven) {
  const auto fails = [](sample s) -> result<sample> {
    if (s.key.back() == '3') return error(errc::bad_field, "a three").key(s.key).skippable();
    return s;
  };
  const plan<sample> skipping = two_epochs(urls()) | map(fails) | on_error(skip_errors());
  for (const int ahead : {1, 5, 1000}) {
    bounded("counts", [&] {
      auto plain = eng_.run(skipping);
      auto data = eng_.run(skipping | prefetch(ahead));
      ASSERT_EQ(data.counts(), ledger()) << "nothing was asked for";
      for (int ends = 0, calls = 0; ends < 2; ++calls) {
        if (calls % 5 == 0) wait(data, 16);
        const std::string given = next_of(plain);
        ASSERT_EQ(next_of(data), given);
        ASSERT_EQ(data.counts().summary(), plain.counts().summary()) << given;
        ends += given == "end" ? 1 : 0;
      }
      EXPECT_EQ(data.counts().epochs.size(), 2U);
    });
  }
}

// A program that continues after an error has skipped what failed.
TEST_F(Asked, WhatAProgramPassesOverIsCounted) {
  const auto fails = [](sample s) -> result<sample> {
    if (s.key.back() == '3') return error(errc::bad_field, "a three").key(s.key).skippable();
    return s;
  };
  std::vector<std::string> all = urls();
  all.insert(all.begin() + 3, "memory:gone");
  const plan<sample> skipping = two_epochs(all) | map(fails) | on_error(skip_errors());
  const plan<sample> failing = two_epochs(all) | map(fails) | on_error(fail_on_error());
  bounded("passed over", [&] {
    auto skips = eng_.run(skipping | prefetch({.items = 3, .within_epoch = true}));
    rest_of(skips);
    for (const bool ahead : {false, true}) {
      auto fails_first =
          eng_.run(ahead ? failing | prefetch({.items = 3, .within_epoch = true}) : failing);
      rest_of(fails_first);
      EXPECT_EQ(fails_first.counts().summary(), skips.counts().summary());
      EXPECT_GT(fails_first.counts().lost, 0U) << "of the shard that is gone";
    }
  });
}

// A stop in the middle of a burst of items, of which the spine has taken some for next_ready().
TEST_F(Asked, AStopBetweenTwoReadyItemsIsAnswered) {
  for (int stops_at = 0; stops_at < 60; ++stops_at) {
    bounded("a stop in a burst", [&] {
      struct stopper {
        loader<sample>* whom = nullptr;
        int left = 0;
      };
      const auto by = std::make_shared<stopper>();
      by->left = stops_at;
      const auto passes = [by](sample s) {
        if (by->left-- == 0) by->whom->stop();
        return s;
      };
      const plan<sample> what = interleaved(two_epochs(urls())) | map(passes) | prefetch(16);
      auto data = eng_.run(what);
      by->whom = &data;
      std::size_t given = 0;
      try {
        for (int ends = 0; ends < 2;) {
          const auto some = data.next_ready(16);
          given += some.size();
          ends += some.empty() ? 1 : 0;
        }
        ADD_FAILURE() << "not stopped";
      } catch (const failure& f) {
        EXPECT_EQ(f.kind(), errc::stopped) << f.what();
      }
      auto whole = eng_.run(interleaved(two_epochs(urls())));
      for (std::size_t i = 0; i < given; ++i) next_of(whole);
      auto resumed = eng_.run(interleaved(two_epochs(urls())));
      resumed.restore(data.save());
      for (int i = 0; i < 20; ++i) ASSERT_EQ(next_of(resumed), next_of(whole));
    });
  }
}

// A stop at any item: a stage's record is that of what was given, if the plan ends in prefetch().
TEST_F(Asked, AStopLosesNothingOfAStageWithARecord) {
  for (int stops_at = 0; stops_at < 60; ++stops_at) {
    for (const std::size_t most : {std::size_t{1}, std::size_t{16}}) {
      bounded("a stop", [&] {
        const plan<sample> what = interleaved(two_epochs(urls())) | halved() | prefetch(16);
        auto whole = eng_.run(what);
        auto data = eng_.run(what);
        int left = stops_at;
        try {
          for (;;) {
            if (left % 3 == 0) wait(data, most);
            for (const sample& s : data.next_ready(most)) {
              ASSERT_EQ(s.key, next_of(whole));
              if (left-- == 0) data.stop();
            }
          }
        } catch (const failure& f) {
          EXPECT_EQ(f.kind(), errc::stopped) << f.what();
        }
        auto resumed = eng_.run(what);
        resumed.restore(data.save());
        for (int i = 0; i < 20; ++i) ASSERT_EQ(next_of(resumed), next_of(whole));
      });
    }
  }
}

TEST_F(Asked, AnEndThatIsThereIsNotGivenAfterAStop) {
  for (const bool ahead : {false, true}) {
    bounded("an end", [&] {
      const plan<sample> plain = interleaved(two_epochs(urls()));
      const plan<sample> what = ahead ? plain | prefetch(2) : plain;
      auto data = eng_.run(what);
      auto whole = eng_.run(what);
      while (data.counts().delivered < all_keys().size()) ASSERT_EQ(next_of(data), next_of(whole));
      wait(data);
      data.stop();
      EXPECT_THROW(data.next(), failure);
      auto resumed = eng_.run(what);
      resumed.restore(data.save());
      EXPECT_EQ(next_of(resumed), "end");
    });
  }
}

// Nothing of the second epoch is asked of the stages in front while the consumer is in the first.
TEST_F(Asked, APrefetchWithinAnEpochWaitsForTheNextToBeAskedFor) {
  for (int round = 0; round < 20; ++round) {
    bounded("an epoch", [&] {
      auto ends = std::make_shared<std::atomic<int>>(0);
      class counting final : public detail::passing<sample> {
       public:
        counting(std::unique_ptr<stream<sample>> items, std::shared_ptr<std::atomic<int>> ends)
            : passing(std::move(items)), ends_(std::move(ends)) {}
        awaitable<outcome> next() override {
          if (*ends_ == 1) *ends_ = 2;  // of the second epoch
          auto item = co_await items_->next();
          if (item && !*item) ++*ends_;
          co_return item;
        }

       private:
        std::shared_ptr<std::atomic<int>> ends_;
      };
      const stage<sample, sample> counted = {
          "counting",
          [ends](run_context& /*run*/,
                 std::unique_ptr<stream<sample>> items) -> std::unique_ptr<stream<sample>> {
            return std::make_unique<counting>(std::move(items), ends);
          }};
      auto data = eng_.run(interleaved(two_epochs(urls())) | counted |
                           prefetch({.items = 1 + round, .within_epoch = true}));
      while (data.next()) {
      }
      static_cast<void>(data.stats());  // the spine has done what it had to do by then
      EXPECT_EQ(*ends, 1) << round;
      EXPECT_TRUE(data.next());
    });
  }
}

// The first policy passes errors on, the second one skips them: each is counted once.
TEST_F(Asked, WhatALaterPolicySkipsIsCountedOnce) {
  const auto fails = [](sample s) -> result<sample> {
    if (s.key.back() == '3') return error(errc::bad_field, "a three").key(s.key).skippable();
    return s;
  };
  const plan<sample> failing = two_epochs(urls()) | map(fails);
  bounded("two policies", [&] {
    auto one = eng_.run(failing | on_error(skip_errors()));
    auto two = eng_.run(failing | on_error(fail_on_error()) | on_error(skip_errors()));
    EXPECT_EQ(rest_of(one), rest_of(two));
    EXPECT_EQ(one.counts().summary(), two.counts().summary());
  });
}

struct number {
  int n = 0;
};

TEST_F(Asked, APositionBeforeAnItemOfUnknownOriginIsRefused) {
  auto data = eng_.run(two_epochs(urls()) | map([](const sample&) { return number{}; }));
  wait(data);
  EXPECT_THROW(data.save(), failure);
  EXPECT_TRUE(data.next());
  EXPECT_NO_THROW(data.save());
}

TEST_F(Asked, ARunThatWasAskedHasBegun) {
  const plan<sample> what = interleaved(two_epochs(urls()));
  const state at = eng_.run(what).save();
  auto data = eng_.run(what);
  data.wait_for(milliseconds(0));
  EXPECT_THROW(data.restore(at), failure);
}

}  // namespace
}  // namespace millrace
