#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "pipeline/engine.h"

namespace millrace {

// One setting tried, several times in turns with the others of its kind: what it was set to beyond
// the settings that won before, and what it gave. The rate is the median of its turns.
struct trial {
  std::string variable;  // empty: the settings as they are
  std::string value;
  std::string meaning;
  double mb_per_s = 0;
  double least_mb_per_s = 0;
  double most_mb_per_s = 0;
  double p99_s = 0;
  double cpu_s_per_gb = 0;
  std::string from;  // "disk", "page cache", "mixed", "memory"; "network"
  int turns = 0;
  std::vector<double> rates;  // MB/s, of each turn
  bool kept = false;
};

struct tuning {
  std::vector<trial> trials;
  // What to set, with the reason; empty when nothing is gained.
  struct advice {
    std::string variable;
    std::string value;
    std::string reason;
  };
  std::vector<advice> gains;
  bool stopped = false;  // not all was tried
};

// A value of a variable that may gain.
struct candidate {
  std::string variable;
  std::string value;
  std::string meaning;
  std::function<void(engine_options&)> apply;
};

// Settings of one variable, of which at most one is kept.
using family = std::vector<candidate>;

// One turn: its rate, its p99 and CPU time, and where the bytes came from.
using measurement = std::function<trial(const engine_options& with, double seconds)>;

// What a turn comes to when it runs: the mean of `rates`, of intervals of one length, without the
// first third. Until then connections are made and reads at once are tried, of which an epoch shows
// nothing; and what is under way at the end, more with some settings than with others, is in none.
// 0 without rates.
double steady_rate(const std::vector<double>& rates);

// One trial of its turns' figures: rates' median, least and most; of the rest, the medians.
trial combined(std::vector<trial> turns);

// A setting is kept when its median is `least_gain` times that of the settings without it, and the
// gain is more than what turns of one setting differ by among themselves: of all pairs of a turn
// with it and a turn without it, it is the faster one in `least_share`. Both must come from the
// same place: a disk's rate and the page cache's are not compared. (The share of pairs is the
// statistic of Mann and Whitney, 1947.)
inline constexpr double least_gain = 1.05;
inline constexpr double least_share = 0.9;
bool gains(const trial& with, const trial& before);

// Every setting has `first_turns`. The best one of a family that seems to gain is then measured
// against the settings without it in `more_turns` of each, and all its turns are judged: the best
// of several by a few turns looks like a gain on any busy host. With these numbers, settings that
// change nothing are advised in about one of a hundred tunings, however much turns differ.
inline constexpr int first_turns = 3;
inline constexpr int more_turns = 6;

// The settings as they are, then family after family, each on top of the winners before it and
// beside them; turns go forwards and backwards, so that what drifts meets all alike. Takes
// `seconds` at most, by the times that it gives to `measure`; each turn gets a like share of what
// is left. `progress`: of each trial when its turns are over.
tuning try_families(const std::vector<family>& families, const engine_options& how,
                    const measurement& measure, double seconds,
                    const std::function<void(const trial&)>& progress,
                    const std::atomic<bool>& interrupted);

}  // namespace millrace
