// A state is a file, so each of its numbers may be anything. Whatever it says, the resumed run
// refuses it, or yields some samples and ends: stages do not calculate with unchecked numbers
// (UndefinedBehaviorSanitizer), do not access anything out of range, and do not allocate memory for
// them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <memory>

#include "millrace/millrace.h"
#include "pipeline/shards/redeal.h"
#include "pipeline/stages/window_shuffle.h"
#include "pipeline/state/merged.h"
#include "tests/support/loaders.h"
#include "tests/support/seeds.h"
#include "tests/support/text_shards.h"
#include "tests/support/watchdog.h"

namespace millrace {
namespace {

constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();

// Replacements for `n`, which may be an index or a count.
std::vector<std::int64_t> instead_of(std::int64_t n) {
  return {-1, 0, n + 1, 1'000, std::int64_t{1} << 31, std::int64_t{1} << 40, most, least};
}

class ForgedState : public testing::text_shards {
 protected:
  // Calls f(state) with each number of the records replaced, and with each record cut.
  template <class F>
  static void each_forged(const state& saved, F f) {
    std::uint64_t place = 0;
    for (const auto& [name, values] : saved.records()) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        for (const std::int64_t n : instead_of(values[i])) {
          if (!testing::is_taken(place++)) continue;
          SCOPED_TRACE(fmt::format("{}[{}] = {}", name, i, n));
          state wrong = saved;
          state::record forged = values;
          forged[i] = n;
          wrong.put(name, std::move(forged));
          f(wrong);
        }
      }
      for (std::size_t size = 0; size < values.size(); ++size) {
        if (!testing::is_taken(place++)) continue;
        SCOPED_TRACE(fmt::format("{} of {}", name, size));
        state wrong = saved;
        wrong.put(name, {values.begin(), values.begin() + static_cast<std::ptrdiff_t>(size)});
        f(wrong);
      }
    }
  }

  // The state after a few items.
  template <class P>
  static state saved_by(engine& eng, const P& p) {
    auto data = eng.run(p);
    for (int i = 0; i < 7; ++i) data.next();
    return data.save();
  }

  template <class P>
  void forge(const P& p) {
    engine eng(testing::with_memory_store(store_));
    const state saved = saved_by(eng, p);
    each_forged(saved, [&](const state& wrong) { resume(eng, p, wrong); });
    for (const auto& [name, samples] : saved.all_held()) forge_held(eng, p, saved, name);
    EXPECT_GT(refused_, 50 / testing::every());
    EXPECT_GT(harmless_, 0);
  }

  void is_merged_and_dealt() { lanes_ = 3; }

 private:
  template <class P>
  void forge_held(engine& eng, const P& p, const state& saved, const std::string& name) {
    for (std::int64_t origin::* field :
         {&origin::lane, &origin::shard, &origin::offset, &origin::epoch, &origin::position}) {
      state wrong = saved;
      const std::int64_t was = wrong.held_from(name, 0).front().*field;
      for (const std::int64_t n : instead_of(was)) {
        SCOPED_TRACE(fmt::format("{} holds {}", name, n));
        wrong.held_from(name, 0).front().*field = n;
        resume(eng, p, wrong);
      }
    }
  }

  template <class P>
  void resume(engine& eng, const P& p, const state& wrong) {
    testing::bounded("a resume of a forged state", [&] {
      try {
        auto rest = eng.run(p);
        const std::array of_ranks = {wrong};
        rest.restore(lanes_ == 0 ? wrong
                                 : redealt(merged(of_ranks), lanes_, testing::usual_records()));
        for (int n = 0; n < 20; ++n) rest.next();
        ++harmless_;
      } catch (const failure& f) {
        ++refused_;
        EXPECT_TRUE(f.kind() != errc::uncaught && f.kind() != errc::no_memory) << f.what();
      }
    });
  }

  std::int64_t lanes_ = 0;  // of the resumed run, if different
  int refused_ = 0;
  int harmless_ = 0;
};

lane_plan<sample> some(const std::vector<std::string>& urls) {
  return shards(urls, {.lanes = 2}) | untar() | group_by_key();
}

TEST_F(ForgedState, OfStagesThatCount) {
  forge(interleaved(some(urls(2))) | slice(1, 30) |
        map([](sample s) { return s; }, {.threads = 2}) | on_error(skip_up_to(20)) | epochs_of(9) |
        batched(3));
}

TEST_F(ForgedState, OfNoLanes) {
  engine eng(testing::with_memory_store(store_));
  for (const epoch_mode mode : {epoch_mode::exact, epoch_mode::resample}) {
    const auto of_lanes = [&](int lanes) {
      return shards(urls(2), {.lanes = lanes, .mode = mode}) | untar() | group_by_key();
    };
    const state saved = eng.run(of_lanes(2)).save();
    state wrong;
    plan_record plan = plan_record::in(saved).value();
    plan.lanes = 0;
    plan.put(wrong);
    wrong.put(epoch_record, {0});
    auto data = eng.run(of_lanes(3));
    try {
      data.restore(state::from_json(wrong.to_json()).value());
      ADD_FAILURE() << "not refused";
    } catch (const failure& f) {
      EXPECT_EQ(f.kind(), errc::bad_state) << f.what();
    }
  }
}

TEST_F(ForgedState, OfAShuffle) {
  forge(interleaved(text_plan({.lanes = 2}, 8)) | batched(2));
}

TEST_F(ForgedState, OfAMix) {
  forge(interleaved(mix({{some(urls(2)), 1}, {some(urls(3)), 2}}, {.seed = 1})) | repeated(2) |
        batched(2));
}

TEST_F(ForgedState, OfAWindow) {
  engine eng(testing::with_memory_store(store_));
  const auto index = std::make_shared<const shard_index>(testing::index_of(eng, urls(3)));
  forge(interleaved(shards(urls(3), {.lanes = 2, .index = index}) |
                    window_shuffle({.samples = 60, .seed = 1})) |
        batched(2));
}

// What the ranks of a job give, merged for another number of them: of ranks that have begun, and of
// ranks that were resumed from a merged state themselves.
TEST_F(ForgedState, MergedOfRanks) {
  engine eng(testing::with_memory_store(store_));
  const auto of_rank = [&](int rank) {
    return interleaved(text_plan({.rank = rank, .world_size = 2, .lanes = 4}, 8)) | repeated(2) |
           epochs_of(5) | batched(2);
  };
  const std::array first = {saved_by(eng, of_rank(0)), saved_by(eng, of_rank(1))};
  const state whole = merged(first);
  int refused = 0;
  int harmless = 0;
  const auto merge = [&](const std::vector<state>& of_ranks) {
    try {
      merged(of_ranks);
      skipping(of_ranks, 3);
      ++harmless;
    } catch (const failure& f) {
      ++refused;
      EXPECT_EQ(f.kind(), errc::bad_state) << f.what();
    }
  };
  EXPECT_NE(whole.find("ends_held of rank 0 of 2"), nullptr);
  each_forged(first[0], [&](const state& wrong) { merge({wrong, first[1]}); });
  each_forged(whole, [&](const state& wrong) { merge({wrong}); });
  EXPECT_GT(refused, 50 / testing::every());
  EXPECT_GT(harmless, 0);
}

TEST_F(ForgedState, MergedAndDealtToOtherLanes) {
  is_merged_and_dealt();
  forge(interleaved(text_plan({.lanes = 2}, 8)) | on_error(skip_errors()) | slice(1, 100) |
        batched(2));
}

}  // namespace
}  // namespace millrace
