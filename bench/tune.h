#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "bench/disk_bench.h"

namespace millrace {

// One setting tried: what it was set to beyond the settings that won before, and what it gave.
struct trial {
  std::string variable;  // empty: the settings as they are
  std::string value;
  std::string meaning;
  double mb_per_s = 0;
  double p99_s = 0;
  double cpu_s_per_gb = 0;
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
};

// Tries, one after the other: direct reads, reads at once (devices without a gate), the gate on and
// off and the extent of its turns (rotational ones), the bytes of a read. A setting is kept when it
// gives `least_gain` more than the best before it. Takes about `seconds` in all. The files' pages
// are dropped from the page cache before each trial.
inline constexpr double least_gain = 1.05;
tuning tune_disk(const engine_options& how, const std::vector<std::string>& paths, int streams,
                 double seconds, const std::function<void(const trial&)>& progress,
                 const std::atomic<bool>& interrupted);

// The same for objects on servers: parts at once and their size, buffers, threads. `connections`:
// objects read at once. A trial's p99 is of the time to first bytes.
tuning tune_http(const engine_options& how, const std::vector<std::string>& urls, int connections,
                 double seconds, const std::function<void(const trial&)>& progress,
                 const std::atomic<bool>& interrupted);

}  // namespace millrace
