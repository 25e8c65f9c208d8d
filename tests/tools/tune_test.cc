#include "tools/bench/tune.h"

#include <gtest/gtest.h>

#include "engine/base/random.h"

namespace millrace {
namespace {

trial of(double mb_per_s, const std::string& from = "disk") {
  trial t;
  t.mb_per_s = mb_per_s;
  t.from = from;
  return t;
}

trial turns_of(std::initializer_list<double> rates, const std::string& from = "disk") {
  std::vector<trial> turns;
  for (const double r : rates) turns.push_back(of(r, from));
  return combined(turns);
}

TEST(Tune, ATrialIsItsTurnsMedianWithTheirSpread) {
  const trial t = turns_of({300, 100, 200});
  EXPECT_EQ(t.mb_per_s, 200);
  EXPECT_EQ(t.least_mb_per_s, 100);
  EXPECT_EQ(t.most_mb_per_s, 300);
  EXPECT_EQ(t.turns, 3);
  EXPECT_EQ(t.rates, (std::vector<double>{300, 100, 200}));
  EXPECT_EQ(combined({of(1, "disk"), of(2, "page cache")}).from, "mixed");
}

TEST(Tune, ATurnsBeginningDoesNotCount) {
  EXPECT_EQ(steady_rate({0, 10, 100, 110, 90, 100}), 100);
  EXPECT_EQ(steady_rate({70}), 70);
  EXPECT_EQ(steady_rate({}), 0);
}

TEST(Tune, AGainIsMoreThanTheTurnsDifferBy) {
  const trial before = turns_of({100, 110, 104, 90, 106});
  EXPECT_TRUE(gains(turns_of({120, 130, 125, 128, 140}), before));
  EXPECT_TRUE(gains(turns_of({120, 130, 125, 128, 105}), before));   // 23 of 25 pairs
  EXPECT_FALSE(gains(turns_of({103, 130, 125, 128, 105}), before));  // 20
  // As much by the medians, but turns with it differ by more than that.
  EXPECT_FALSE(gains(turns_of({80, 90, 130, 180, 190}), before));
  EXPECT_FALSE(gains(turns_of({110, 109, 109, 111, 111}), turns_of({106, 106, 106})));  // under 5 %
  EXPECT_FALSE(gains(turns_of({900, 910, 920}, "page cache"), before));
}

// A device in made-up turns. As many settings as disks have; the variable "b" is the one that may
// change something: its 3rd to 6th value give `gain` times the rate.
struct made_up_device {
  enum class noise { none, even, bursts };
  noise differ = noise::none;
  double gain = 1;
  random_stream luck;
  bool others_read = false;
  double measured_s = 0;

  double next_rate(const engine_options& with) {
    double rate = 1000 * (with.source.read_depth >= 3 ? gain : 1);
    switch (differ) {
      case noise::none:
        break;
      case noise::even:
        rate *= luck.uniform(0.8, 1.2);
        break;
      case noise::bursts:  // somebody else takes a fifth, for five turns at a time on average
        if (luck.below(5) == 0) others_read = !others_read;
        rate *= (others_read ? 0.8 : 1) * luck.uniform(0.97, 1.03);
        break;
    }
    return rate;
  }
  static std::vector<family> families() {
    std::vector<family> out;
    for (const auto& [variable, values] : std::initializer_list<std::pair<const char*, int>>{
             {"a", 2}, {"b", 6}, {"c", 1}, {"d", 2}}) {
      family& f = out.emplace_back();
      for (int i = 1; i <= values; ++i) {
        f.push_back({variable, std::to_string(i), "", [=](engine_options& o) {
                       if (*variable == 'b') o.source.read_depth = i;
                     }});
      }
    }
    return out;
  }
  tuning tuned() {
    const measurement measure = [this](const engine_options& with, double seconds) {
      measured_s += seconds;
      return of(next_rate(with));
    };
    return try_families(families(), {}, measure, {.seconds = 30});
  }
};

struct found_count {
  int advised = 0;  // tunings that advise anything
  int right = 0;    // those that advise a value of "b" that gains
};

found_count of_1000(made_up_device::noise differ, double gain) {
  found_count found;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    made_up_device device{differ, gain, random_stream(seed, purpose::device)};
    const tuning t = device.tuned();
    found.advised += t.gains.empty() ? 0 : 1;
    for (const auto& g : t.gains)
      found.right += g.variable == "b" && std::stoi(g.value) >= 3 ? 1 : 0;
  }
  return found;
}

TEST(Tune, NoiseIsAdvisedInTwoOfAHundredTuningsAtMost) {
  EXPECT_LE(of_1000(made_up_device::noise::even, 1).advised, 20);
  EXPECT_LE(of_1000(made_up_device::noise::bursts, 1).advised, 20);
  EXPECT_EQ(of_1000(made_up_device::noise::none, 1).advised, 0);
}

TEST(Tune, AGainOfFortyPerCentIsFoundInNoise) {
  EXPECT_GE(of_1000(made_up_device::noise::even, 1.4).right, 970);
  EXPECT_GE(of_1000(made_up_device::noise::bursts, 1.4).right, 970);
  EXPECT_EQ(of_1000(made_up_device::noise::none, 1.4).right, 1000);
}

TEST(Tune, ItTakesNoMoreThanItsTimeAndShowsWhatItJudgedBy) {
  for (const double gain : {1.0, 1.4}) {
    made_up_device device{made_up_device::noise::none, gain, random_stream(0, purpose::device)};
    const tuning t = device.tuned();
    EXPECT_LE(device.measured_s, 30.001);
    EXPECT_GT(device.measured_s, 15);
    ASSERT_EQ(t.trials.size(), 4 + 11U);  // each family's values, and what they are compared with
    EXPECT_FALSE(t.stopped);
    for (const trial& tried : t.trials) {
      const bool again = gain > 1 && (tried.kept || &tried == &t.trials[3]);
      EXPECT_EQ(tried.turns, again ? first_turns + more_turns : first_turns) << tried.variable;
      EXPECT_EQ(tried.kept, gain > 1 && tried.variable == "b" && tried.value == "3");
    }
  }
}

TEST(Tune, WhatIsStoppedBeforeItWasMeasuredAgainIsNotAdvised) {
  made_up_device device{made_up_device::noise::none, 1.4, random_stream(0, purpose::device)};
  for (const int stop_after : {1, 12, 9 + 21 + 1, 9 + 21 + 11}) {
    std::stop_source stopped;
    int turns = 0;
    const auto t = try_families(made_up_device::families(), {},
                                [&](const engine_options& with, double /*seconds*/) {
                                  if (++turns == stop_after) stopped.request_stop();
                                  return of(device.next_rate(with));
                                },
                                {.seconds = 30, .stop = stopped.get_token()});
    EXPECT_TRUE(t.stopped);
    EXPECT_TRUE(t.gains.empty()) << stop_after;
    EXPECT_EQ(turns, stop_after);
  }
}

}  // namespace
}  // namespace millrace
