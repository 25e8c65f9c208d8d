// The real spine on one thread in simulated time, from many seeds (tests/README.md).
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>

#include "engine/host/log.h"
#include "tests/simulation/allocations.h"
#include "tests/simulation/journey.h"
#include "tests/support/seeds.h"

namespace millrace::testing {
namespace {

std::string replay_of(std::uint64_t seed) {
  return fmt::format(
      "replay: TEST_SIM_SEED={} build/release/bin/simulation_tests --gtest_filter=Seeds.*", seed);
}

// The first missing item, and the first surplus one.
std::string difference(const std::vector<std::string>& given,
                       const std::vector<std::string>& right) {
  std::vector<std::string> missing;
  std::vector<std::string> more;
  std::ranges::set_difference(right, given, std::back_inserter(missing));
  std::ranges::set_difference(given, right, std::back_inserter(more));
  if (missing.empty() && more.empty()) return {};
  return fmt::format("{} missing: {}; {} too many: {}", missing.size(), fmt::join(missing, ", "),
                     more.size(), fmt::join(more, ", "));
}

class Seeds : public ::testing::Test {
 protected:
  Seeds() { set_log_level(log_level::quiet); }
  ~Seeds() override { set_log_level(log_level::notice); }

  static ending run_seed(std::uint64_t seed) {
    const course c = course_of(seed, true);
    expected(c.decodes);
    simulator sim(seed);
    sim.replay = replay_of(seed) + " (" + text_of(c) + ")";
    return run(sim, c);
  }
};

TEST_F(Seeds, EachSampleComesOnceWhateverHappens) {
  const std::uint64_t only = variable("TEST_SIM_SEED", 0);
  const std::uint64_t first = only > 0 ? only : 1;
  const std::uint64_t count = only > 0 ? 1 : variable("TEST_SIM_SEEDS", 200);
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const course c = course_of(seed, true);
    const ending out = run_seed(seed);
    const auto said = [&] { return replay_of(seed) + "\n" + text_of(c); };
    ASSERT_FALSE(out.failed) << out.why << "\n" << said();
    ASSERT_EQ(difference(out.given, expected(c.decodes)), "") << said();
    ASSERT_EQ(out.ledger_wrong, "") << said();
    ASSERT_EQ(out.descriptors, 0U) << said();
    ASSERT_EQ(out.commands, 0) << said();
  }
}

TEST_F(Seeds, TheSameSeedTakesTheSameSteps) {
  std::set<std::uint64_t> traces;
  for (const std::uint64_t seed : {3U, 4U, 5U, 6U}) {
    const ending first = run_seed(seed);
    const auto before = allocations::live();
    const ending second = run_seed(seed);
    EXPECT_EQ(first.trace, second.trace) << seed;
    EXPECT_EQ(first.given, second.given) << seed;
    traces.insert(first.trace);
    const auto third = run_seed(seed).trace;
    EXPECT_EQ(third, second.trace);
    // Nothing remains but what `first` and `second` themselves hold.
    EXPECT_LE(allocations::live(), before + static_cast<std::int64_t>(second.given.size()) + 8);
  }
  EXPECT_EQ(traces.size(), 4U);
}

}  // namespace
}  // namespace millrace::testing
