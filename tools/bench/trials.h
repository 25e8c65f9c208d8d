#pragma once

#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "pipeline/run/engine.h"

namespace millrace {

// One setting, tried several times in turns with others of its kind, on top of the settings that
// won before, and its results. The rate is the median of its turns.
struct trial {
  std::string variable;  // empty: the present settings
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
  // The settings to make, with reasons; empty if none helps.
  struct advice {
    std::string variable;
    std::string value;
    std::string reason;
  };
  std::vector<advice> gains;
  bool stopped = false;  // not every setting was tried
};

// A value of a variable that may help.
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

// The steady rate of a turn: the mean of `rates`, of intervals of equal length, without the first
// third, in which connections are made and depths are tried, which an epoch amortises. Bytes in
// flight at the end, more with some settings than others, do not count. 0 without rates.
double steady_rate(const std::vector<double>& rates);

// Combines a trial's turns: median, least and most of the rates; medians of the rest.
trial combined(std::vector<trial> turns);

// A setting is kept if its median is `least_gain` times that without it, and the gain exceeds the
// variation between turns: of all pairs of a turn with it and a turn without it, it must be faster
// in `least_share`. Both must read from the same place: a disk's rate is not compared with the page
// cache's. (The share of pairs is the statistic of Mann and Whitney, 1947.)
inline constexpr double least_gain = 1.05;
inline constexpr double least_share = 0.9;
bool gains(const trial& with, const trial& before);

// Every setting gets `first_turns`. The best one of a family that seems to help is then measured
// against the settings without it in `more_turns` of each, and all its turns are judged: on a busy
// host, the best of several by a few turns always looks like a gain. With these numbers, useless
// settings are advised in about one of a hundred tunings, however much turns vary.
inline constexpr int first_turns = 3;
inline constexpr int more_turns = 6;

// How long a tuning takes, and what it reports meanwhile.
struct tuning_options {
  double seconds = 30;
  std::function<void(const trial&)> progress = {};  // of each trial, after its turns; may be empty
  std::stop_token stop = {};                        // ends it early, with the trials so far
};

// Tries the present settings, then each family on top of the winners before it, alternating with
// them; turns go forwards and backwards, so that drift affects all alike. Takes at most
// options.seconds, by the times that it passes to `measure`; each turn gets an equal share of the
// rest.
tuning try_families(const std::vector<family>& families, const engine_options& how,
                    const measurement& measure, const tuning_options& options);

}  // namespace millrace
