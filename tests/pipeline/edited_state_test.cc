// States that were edited: moved to the beginning of an epoch, or over samples of one. The resumed
// run is compared with one that was never stopped.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <memory>

#include "engine/host/log.h"
#include "millrace/millrace.h"
#include "pipeline/stages/window_shuffle.h"
#include "pipeline/state/records.h"
#include "tests/support/seeds.h"
#include "tests/support/text_shards.h"

namespace millrace {
namespace {

using place = std::pair<std::int64_t, std::string>;  // position and key

class EditedState : public testing::text_shards {
 protected:
  // A plan of one rank.
  using plan_of = std::function<plan<sample>(int rank, int world)>;

  EditedState() : engine_(testing::with_memory_store(store_)) {
    set_log_sink([](std::string_view) {});
  }
  ~EditedState() override { set_log_sink({}); }
  EditedState(const EditedState&) = delete;
  EditedState& operator=(const EditedState&) = delete;

  struct run_of_ranks {
    std::vector<place> samples;
    std::uint64_t dropped = 0;
  };
  // The rest of the epoch on all ranks, in its global order.
  run_of_ranks rest(const plan_of& of, int world, const std::vector<state>& from) {
    run_of_ranks out;
    for (int r = 0; r < world; ++r) {
      auto data = engine_.run(of(r, world));
      data.restore(from.size() == 1 ? from.front() : from[static_cast<std::size_t>(r)]);
      for (auto& s : data) out.samples.emplace_back(s.where.position, s.key);
      out.dropped += data.counts().dropped;
    }
    std::ranges::sort(out.samples);
    return out;
  }

  // The states of ranks that have each given so many samples.
  std::vector<state> saved(const plan_of& of, int world, int steps) {
    std::vector<state> out;
    for (int r = 0; r < world; ++r) {
      auto data = engine_.run(of(r, world));
      for (int i = 0; i < steps; ++i) data.next();
      out.push_back(state::from_json(data.save().to_json()).value());
    }
    return out;
  }

  // Skips stretches of several lengths. Where the lanes last, the run lacks exactly the next
  // samples in its global order; in any case, those at the positions in the record.
  void skip(const plan_of& of, int world, const std::vector<state>& from, int other_world) {
    const auto unbroken = rest(of, world, from).samples;
    const auto left = std::ssize(unbroken);
    for (const std::int64_t n :
         {std::int64_t{1}, std::int64_t{7}, std::int64_t{64}, left, left + 99}) {
      SCOPED_TRACE(fmt::format("{} of {}", n, left));
      const skipping_states made = skipping(from, n);
      const auto stretch = stretch_record::in(made.of_ranks.front()).value();
      std::vector<place> expected;
      std::ranges::copy_if(unbroken, std::back_inserter(expected),
                           [&](const place& p) { return p.first >= stretch.below; });
      const auto got = rest(of, world, made.of_ranks);
      EXPECT_EQ(got.samples, expected);
      EXPECT_EQ(std::ssize(expected) + static_cast<std::int64_t>(got.dropped), left);
      if (n <= 64 && n < left / 2) {
        EXPECT_EQ(static_cast<std::int64_t>(got.dropped), n);
        EXPECT_EQ(std::vector(unbroken.begin() + n, unbroken.end()), got.samples);
      }
      const state whole = merged(made.of_ranks);
      EXPECT_EQ(rest(of, other_world, {whole}).samples, expected);
      EXPECT_EQ(made.epoch, 0);
    }
  }

  engine engine_;
};

TEST_F(EditedState, SkipsTheNextSamplesInTheirOrder) {
  for (const bool shuffled : {false, true}) {
    for (const int world : {1, 3}) {
      const plan_of of = [&](int rank, int ranks) {
        auto lanes =
            shards(
                urls(),
                {.seed = 42, .rank = rank, .world_size = ranks, .lanes = 6, .shuffle = shuffled}) |
            untar() | group_by_key();
        if (!shuffled) return interleaved(lanes) | prefetch(3);
        return interleaved(std::move(lanes) | shuffle({.samples = 60, .seed = 1})) |
               map(testing::same, {.threads = 2});
      };
      for (const int steps : {0, 5, 40}) {
        SCOPED_TRACE(fmt::format("{} ranks, {} steps, shuffled {}", world, steps, shuffled));
        skip(of, world, saved(of, world, steps), world == 1 ? 2 : 1);
      }
    }
  }
}

// Lanes that were redistributed; and a state that is saved again before it has passed them.
TEST_F(EditedState, SkipsInRedistributedLanes) {
  const plan_of before = [](int, int) { return interleaved(text_plan({.lanes = 4})); };
  const plan_of after = [](int rank, int world) {
    return interleaved(text_plan({.rank = rank, .world_size = world, .lanes = 6})) |
           map(testing::same, {.threads = 2});
  };
  const auto old = saved(before, 1, 70);
  for (const int world : {1, 3}) {
    std::vector<state> of_ranks;
    for (int r = 0; r < world; ++r) {
      auto data = engine_.run(after(r, world));
      data.restore(old.front());
      for (int i = 0; i < 10; ++i) data.next();
      of_ranks.push_back(data.save());
    }
    skip(after, world, of_ranks, 2);
  }
}

TEST_F(EditedState, SkipsOfAMixOfWindowsAndOfDrawnShards) {
  const auto index = std::make_shared<const shard_index>(testing::index_of(engine_, urls()));
  const auto some = [](int first, int rank, int world) {
    const auto all = urls();
    return shards({all.begin() + first, all.begin() + first + 3},
                  {.seed = 3, .rank = rank, .world_size = world, .lanes = 6}) |
           untar() | group_by_key();
  };
  const std::vector<plan_of> plans = {
      [&](int rank, int world) {
        return interleaved(
            mix({{some(0, rank, world), 1}, {some(3, rank, world), 2}}, {.seed = 1}));
      },
      [&](int rank, int world) {
        return interleaved(
                   shards(
                       urls(),
                       {.seed = 3, .rank = rank, .world_size = world, .lanes = 6, .index = index}) |
                   window_shuffle({.samples = 60, .seed = 1})) |
               prefetch(4);
      }};
  for (const auto& of : plans) skip(of, 1, saved(of, 1, 30), 3);

  const auto drawn = interleaved(text_plan({.lanes = 2, .mode = epoch_mode::resample}));
  auto data = engine_.run(drawn);
  for (int i = 0; i < 10; ++i) data.next();
  const std::array from = {data.save()};
  for (int i = 0; i < 500; ++i) data.next();
  auto resumed = engine_.run(drawn);
  resumed.restore(skipping(from, 500).of_ranks.front());
  for (int i = 0; i < 50; ++i) EXPECT_EQ(resumed.next()->key, data.next()->key);
}

// Samples on which a stage of their lane fails take no position, and are not counted.
TEST_F(EditedState, SkipsWhereSamplesFail) {
  const sample_stage picky{"picky", [](sample s) -> result<std::optional<sample>> {
                             if (s.key.back() != '3') return s;
                             return of_sample(s, error(errc::bad_field, "a three"));
                           }};
  const plan_of of = [&](int rank, int world) {
    return interleaved(text_plan({.rank = rank, .world_size = world, .lanes = 3}) | picky) |
           map(testing::same, {.threads = 2}) | on_error(skip_errors());
  };
  for (const int steps : {0, 3, 11, 12, 13}) {
    SCOPED_TRACE(steps);
    skip(of, 1, saved(of, 1, steps), 3);
  }
}

// A skip that is over leaves no record; until then it is saved, and can be extended.
TEST_F(EditedState, TheRecordOfASkipEndsWithIt) {
  const auto of = interleaved(text_plan({.lanes = 3})) | prefetch(2);
  auto data = engine_.run(of);
  for (int i = 0; i < 20; ++i) data.next();
  const std::array from = {data.save()};
  for (int i = 0; i < 50; ++i) data.next();

  const skipping_states once = skipping(from, 30);
  auto resumed = engine_.run(of);
  resumed.restore(once.of_ranks.front());
  const std::array again = {resumed.save()};
  EXPECT_NE(again.front().find(stretch_record::name), nullptr);
  resumed.restore(skipping(again, 20).of_ranks.front());
  EXPECT_EQ(resumed.next()->key, data.next()->key);
  EXPECT_EQ(resumed.counts().dropped, 50U);
  EXPECT_EQ(resumed.save(), data.save());
}

TEST_F(EditedState, SaysWhatWasSkippedAndThatTheEpochEnded) {
  std::vector<std::string> lines;
  set_log_sink([&](std::string_view line) { lines.emplace_back(line); });
  const auto of = interleaved(text_plan({.lanes = 2, .epochs = 2}));
  const auto from = saved([&](int, int) { return of; }, 1, 9);
  for (const std::int64_t n : {10, 1000}) {
    auto data = engine_.run(of);
    data.restore(skipping(from, n).of_ranks.front());
    const auto left = testing::keys_of_epoch(data).size();
    const auto dropped = data.counts().dropped;
    EXPECT_EQ(9 + dropped + left, all_keys().size());
    const auto said = fmt::format("epoch 0: passed over {} samples", dropped);
    EXPECT_TRUE(std::ranges::any_of(lines, [&](const std::string& line) {
      return line.find(said) != line.npos && (line.find("it ended") != line.npos) == (n == 1000);
    })) << said;
    EXPECT_EQ(testing::keys_of_epoch(data).size(), all_keys().size());  // the next one is whole
  }
}

// Counting stages counted what later ones held. An epoch is shorter by those that were passed over.
TEST_F(EditedState, SkipsInEpochsOfAnyLengthAndInSlices) {
  const auto of = interleaved(text_plan({.lanes = 2})) | slice(0, 200) | on_error(skip_up_to(5)) |
                  epochs_of(100) | prefetch(4);
  auto data = engine_.run(of);
  for (int i = 0; i < 20; ++i) data.next();
  const std::array from = {data.save()};
  const auto held = std::ssize(from.front().held(pending_record));
  const auto unbroken = testing::keys_of_epoch(data);
  for (const std::int64_t n : {1, 2, 30}) {
    auto resumed = engine_.run(of);
    resumed.restore(skipping(from, n).of_ranks.front());
    const auto got = testing::keys_of_epoch(resumed);
    EXPECT_EQ(std::ssize(got), 80 - std::min<std::int64_t>(held, n));
    EXPECT_EQ(got.front(), unbroken[static_cast<std::size_t>(n)]);
  }
}

TEST_F(EditedState, AnotherNumberOfLanesIsRefusedUntilTheSkipIsOver) {
  const auto from = saved([](int, int) { return interleaved(text_plan({.lanes = 2})); }, 1, 9);
  auto other = engine_.run(text_plan({.lanes = 3}));
  try {
    other.restore(skipping(from, 5).of_ranks.front());
    ADD_FAILURE() << "not refused";
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::bad_state);
    EXPECT_NE(std::string(f.what()).find("shard_list_options.lanes 2"), std::string::npos);
  }
}

// Moved from anywhere to an epoch, a run gives it and the following ones as they are.
TEST_F(EditedState, MovesToTheBeginningOfAnEpoch) {
  const auto index = std::make_shared<const shard_index>(testing::index_of(engine_, urls()));
  const shard_list_options o = {.seed = 42, .lanes = 3, .epochs = 3};
  const auto windowed = [&] {
    shard_list_options with = o;
    with.index = index;
    return shards(urls(), with) | window_shuffle({.samples = 60, .seed = 1});
  };
  const std::vector<plan<sample>> plans = {
      interleaved(text_plan(o)) | map(testing::same, {.threads = 2}) | slice(2, 150) |
          on_error(skip_up_to(5)) | prefetch(3),
      interleaved(shards(urls(), o) | untar() | group_by_key()), interleaved(windowed())};
  std::uint64_t place = 0;
  for (const auto& of : plans) {
    auto data = engine_.run(of);
    std::vector<std::vector<std::string>> epochs;
    std::vector<state> from = {data.save()};
    for (int e = 0; e < 3; ++e) {
      std::vector<std::string>& keys = epochs.emplace_back();
      while (auto s = data.next()) {
        keys.push_back(s->key);
        if (keys.size() % 120 == 30) from.push_back(data.save());
      }
      from.push_back(data.save());
    }
    for (const state& s : from) {
      for (std::size_t e = 0; e < 4; ++e) {
        if (!testing::is_taken(place++)) continue;
        auto moved = engine_.run(of);
        moved.restore(
            state::from_json(moved_to_epoch(s, static_cast<std::int64_t>(e)).to_json()).value());
        for (std::size_t then = e; then < 3; ++then) {
          ASSERT_EQ(testing::keys_of_epoch(moved), epochs[then]);
        }
        EXPECT_EQ(testing::keys_of_epoch(moved).size(), 0U);
      }
    }
  }
}

TEST_F(EditedState, MovesRanksAndRedistributedLanes) {
  const auto of = [](int rank, int world, int lanes) {
    return interleaved(text_plan({.rank = rank, .world_size = world, .lanes = lanes, .epochs = 2}));
  };
  const auto old = saved([&](int r, int w) { return of(r, w, 4); }, 2, 70);
  auto fresh = engine_.run(of(0, 1, 3));
  const auto expected = testing::keys_of_epoch(fresh);
  auto data = engine_.run(of(0, 1, 3));
  data.restore(merged(old));
  data.next();
  for (const state& s : {data.save(), merged(old)}) {
    auto moved = engine_.run(of(0, 1, 3));
    moved.restore(moved_to_epoch(s, 0));
    EXPECT_EQ(testing::keys_of_epoch(moved), expected);
  }
}

TEST_F(EditedState, MovesNoMixNoDrawnShardsAndNoOtherEpochs) {
  const auto lanes = [] { return shards(urls(2), {.lanes = 2}) | untar() | group_by_key(); };
  const auto refused = [&](const plan<sample>& of, const std::string& why) {
    const state from = engine_.run(of).save();
    try {
      moved_to_epoch(from, 1);
      ADD_FAILURE() << "not refused: " << why;
    } catch (const failure& f) {
      EXPECT_EQ(f.kind(), errc::unsupported);
      EXPECT_NE(std::string(f.what()).find(why), std::string::npos) << f.what();
    }
  };
  refused(interleaved(mix({{lanes(), 1}, {lanes(), 2}}, {.seed = 1})), "mix");
  refused(interleaved(lanes()) | epochs_of(10), "epochs_of");
  refused(interleaved(lanes()) | repeated(2), "repeated");
  refused(interleaved(shards(urls(2), {.mode = epoch_mode::resample}) | untar() | group_by_key()),
          "endless");
}

TEST_F(EditedState, ForgedNumbersAreRefusedOrHarmless) {
  const auto of = interleaved(text_plan({.lanes = 2}, 8)) | batched(2);
  auto data = engine_.run(of);
  for (int i = 0; i < 7; ++i) data.next();
  const std::array saved = {data.save()};
  const state skipped = skipping(saved, 9).of_ranks.front();
  int refused = 0;
  int harmless = 0;
  const auto edit = [&](const state& wrong) {
    try {
      const std::array of_ranks = {wrong};
      for (const state& s :
           {skipping(of_ranks, 3).of_ranks.front(), moved_to_epoch(wrong, 1), wrong}) {
        auto rest = engine_.run(of);
        rest.restore(s);
        for (int n = 0; n < 20; ++n) rest.next();
      }
      ++harmless;
    } catch (const failure& f) {
      ++refused;
      EXPECT_TRUE(f.kind() != errc::uncaught && f.kind() != errc::no_memory) << f.what();
    }
  };
  std::uint64_t at = 0;
  for (const auto& [name, values] : skipped.records()) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      for (const std::int64_t n :
           {std::int64_t{-1}, std::int64_t{0}, values[i] + 1, std::int64_t{1} << 31, most_counted,
            std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()}) {
        if (!testing::is_taken(at++)) continue;
        SCOPED_TRACE(fmt::format("{}[{}] = {}", name, i, n));
        state::record forged = values;
        forged[i] = n;
        state wrong = skipped;
        wrong.put(name, std::move(forged));
        edit(wrong);
      }
    }
    for (std::size_t size = 0; size < values.size(); ++size) {
      if (!testing::is_taken(at++)) continue;
      SCOPED_TRACE(fmt::format("{} of {}", name, size));
      state wrong = skipped;
      wrong.put(name, {values.begin(), values.begin() + static_cast<std::ptrdiff_t>(size)});
      edit(wrong);
    }
  }
  EXPECT_GT(refused, 50 / testing::every());
  EXPECT_GT(harmless, 0);
}

}  // namespace
}  // namespace millrace
