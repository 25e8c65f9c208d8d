#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "tools/disk_bench.h"
#include "tools/trials.h"

namespace millrace {

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
