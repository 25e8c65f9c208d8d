// No plan waits for memory that only it can release: images broken in any part, any number of
// threads and lanes, the least budget that is accepted, and as many batches kept as were announced.
#include <gtest/gtest.h>

#include <deque>

#include "millrace/millrace.h"
#include "pipeline/stages/batched.h"
#include "tests/support/draws.h"
#include "tests/support/image_shards.h"
#include "tests/support/seeds.h"
#include "tests/support/watchdog.h"

namespace millrace {
namespace {

using testing::bounded;
using testing::image_shards;
using testing::with_memory_store;

// The least budget that the plan accepts, from the refusal.
class Waits : public ::testing::TestWithParam<int> {
 protected:
  int pick(int least, int most) { return drawn_.pick(least, most); }
  int one_of(const std::vector<int>& from) { return drawn_.one_of(from); }

  // Stages between the decoder and the batch.
  std::pair<plan<image>, std::string> with_stages(plan<image> images) {
    const auto same = [](image i) { return i; };
    switch (pick(0, 4)) {
      case 0: {
        const map_options how{.threads = pick(1, 4), .ordered = pick(0, 1) == 0};
        return {images | map(same, how), how.ordered ? "map" : "map unordered"};
      }
      case 1: {
        const int n = pick(1, 100);
        return {images | batched(static_cast<std::size_t>(n)) | unbatched(),
                fmt::format("groups of {}", n)};
      }
      case 2:
        return {images | map([](image i) {
                  return i.label % 10 == 0 ? std::optional(std::move(i)) : std::nullopt;
                }),
                "one in ten"};
      default:
        return {images, "nothing"};
    }
  }

  testing::draws drawn_{GetParam(), 6};
};

// Takes up to `most` batches, keeping the last `kept` of them. Adds their keys; false at the end.
bool take(loader<host_batch>& data, int kept, int most, std::multiset<std::string>& keys) {
  std::deque<host_batch> in_hand;
  for (int i = 0; i < most; ++i) {
    while (std::ssize(in_hand) >= kept) in_hand.pop_front();
    auto b = data.next();
    if (!b) return false;
    keys.insert(b->keys.begin(), b->keys.end());
    in_hand.push_back(std::move(*b));
  }
  return true;
}

TEST_P(Waits, NeverForWhatTheWaiterHolds) {
  const double broken = one_of({0, 10, 50, 80, 90, 95, 99, 100}) / 100.0;
  const int lanes = one_of({1, 2, 8, 64});
  const image_shards data(pick(1, 6), pick(1, 160), broken, drawn_.bits());
  const int threads = one_of({1, 2, 5, 16, 64});
  const int held = pick(1, 6);
  auto lane = shards(data.urls(), {.seed = 9, .lanes = lanes}) | untar() | group_by_key();
  if (pick(0, 1) == 0) {
    lane = lane | shuffle({.samples = static_cast<std::size_t>(pick(1, 300)), .seed = 9});
  }
  const decode_options how{
      .size = one_of({8, 64, 160}), .train = false, .in_flight = one_of({0, 0, 1, 3, 50})};
  const auto [images, between] = with_stages(lane | decode_jpeg(how));
  const batch_options together{.size = one_of({1, 4, 32, 100}), .held = held};
  auto p = images | on_error(skip_errors()) | batch(together);
  const int ahead = pick(0, 4);
  if (ahead > 0) p = p | prefetch(ahead);
  const std::size_t budget = testing::least_memory(with_memory_store(data.store(), threads), p);
  const std::string name = fmt::format(
      "{}: {} broken, {} lanes, {} threads, {} of {} in flight, {} between, batches of "
      "{}, {} held, {} ahead, {} bytes",
      GetParam(), broken, lanes, threads, how.in_flight, how.size, between, together.size, held,
      ahead, budget);
  bounded(name, [&] {
    engine eng(with_memory_store(data.store(), threads, budget));
    std::multiset<std::string> whole;
    auto once = eng.run(p);
    take(once, held, 1 << 20, whole);
    const ledger counts = once.counts();
    EXPECT_EQ(counts.delivered, whole.size()) << name;
    EXPECT_EQ(counts.skipped_in_all(), data.broken().size()) << name << counts.summary();
    // Stopped at random and resumed by a run with other threads, it yields the same.
    std::multiset<std::string> parts;
    state position;
    bool is_first = true;
    for (bool more = true; more; is_first = false) {
      const int now = is_first ? threads : one_of({1, 3, 16});
      engine other(with_memory_store(
          data.store(), now,
          std::max(budget, testing::least_memory(with_memory_store(data.store(), now), p))));
      auto run = other.run(p);
      if (!is_first) run.restore(position);
      more = take(run, held, pick(1, 12), parts);
      if (more) position = run.save();
      if (pick(0, 3) == 0) run.stop();
    }
    EXPECT_EQ(parts, whole) << name;
  });
}

INSTANTIATE_TEST_SUITE_P(Random, Waits, ::testing::Range(0, 60, testing::one_of_as_many));

// A stop ends a run that waits for memory kept by the program, and one that skips forever.
TEST(Stops, AreHeededWhileTheRunWaits) {
  const image_shards data(4, 100, 0, 1);
  engine eng(with_memory_store(data.store(), 2, 64_MiB));
  const auto p = shards(data.urls(), {.epochs = 1000}) | untar() | group_by_key() |
                 decode_jpeg({.size = 160}) | batch({.size = 16});
  auto run = eng.run(p | prefetch(2));
  std::vector<host_batch> kept;
  std::atomic<std::size_t> taken = 0;
  std::thread stopper([&] {
    // Once no more come: the budget has room for fewer than a hundred such batches.
    for (std::size_t last = 1; last != taken || last == 0;) {
      last = taken;
      std::this_thread::yield();
      static_cast<void>(run.counts());
    }
    run.stop();
  });
  bounded("a stop while batches are kept", [&] {
    try {
      for (;;) {
        kept.push_back(*run.next());
        ++taken;
      }
    } catch (const failure& f) {
      EXPECT_EQ(f.kind(), errc::stopped) << f.what();
    }
  });
  stopper.join();
}

// As many batches as were announced can be kept, whatever the budget; otherwise the plan is
// refused.
TEST(Held, BatchesHaveRoomInTheBudget) {
  const image_shards data(4, 200, 0, 1);
  const auto plan_for = [&](int held) {
    return shards(data.urls(), {.lanes = 1}) | untar() | group_by_key() |
           decode_jpeg({.size = 64, .train = false}) | batch({.size = 16, .held = held}) |
           prefetch(2);
  };
  for (const int held : {1, 2, 20, 50}) {
    const auto p = plan_for(held);
    engine eng(with_memory_store(data.store(), 2,
                                 testing::least_memory(with_memory_store(data.store(), 2), p)));
    auto run = eng.run(p);
    std::vector<host_batch> kept;
    bounded(fmt::format("{} held", held), [&] {
      for (int i = 0; i < held; ++i) kept.push_back(*run.next());
    });
    EXPECT_EQ(std::ssize(kept), held);
  }
  // Memory left over in the budget is available for them as well.
  engine eng(with_memory_store(data.store(), 2, 256_MiB));
  auto run = eng.run(plan_for(2));
  std::vector<host_batch> all;
  bounded("all kept", [&] {
    while (auto b = run.next()) all.push_back(std::move(*b));
  });
  EXPECT_EQ(all.size(), 50U);
  EXPECT_THROW(plan_for(0), failure);
}

}  // namespace
}  // namespace millrace
