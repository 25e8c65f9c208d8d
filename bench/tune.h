#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "bench/disk_bench.h"

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

// A setting is kept when its median is `least_gain` times the best before it, its least turn is
// above the most of that, and both come from the same place: a disk's rate and the page cache's
// are not compared.
inline constexpr double least_gain = 1.05;
bool gains(const trial& with, const trial& before);
// One trial of its turns' figures: rates' median, least and most; of the rest, the medians.
trial combined(std::vector<trial> turns);

// Tries, one kind after the other: direct reads, reads at once (devices without a gate), the gate
// on and off and the extent of its turns (rotational ones), the bytes of a read; only what a loader
// uses, which lives on one I/O thread. Takes about `seconds` in all. The files' pages are dropped
// from the page cache before each turn, as far as the kernel does that. `progress`: of each trial
// when its turns are over. Throws `failure` (no_samples) where there is too little data.
tuning tune_disk(const engine_options& how, const std::vector<std::string>& paths, int streams,
                 double seconds, const std::function<void(const trial&)>& progress,
                 const std::atomic<bool>& interrupted);

// The same for objects on servers: parts at once and their size, buffers. `connections`: objects
// read at once. A trial's p99 is of the time to first bytes.
tuning tune_http(const engine_options& how, const std::vector<std::string>& urls, int connections,
                 double seconds, const std::function<void(const trial&)>& progress,
                 const std::atomic<bool>& interrupted);

}  // namespace millrace
