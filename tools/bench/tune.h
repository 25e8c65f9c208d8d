#pragma once

#include <string>
#include <vector>

#include "tools/bench/disk_bench.h"
#include "tools/bench/trials.h"

namespace millrace {

// Tries, in this order: direct reads, reads at once (devices without a gate), the gate on and off
// and the extent of its turns (rotational devices), the bytes of a read; only settings of a loader,
// which uses one I/O thread. Takes about options.seconds. Before each turn the files' pages are
// dropped from the page cache, as far as the kernel allows. Throws `failure` (no_samples) if there
// is too little data.
tuning tune_disk(const engine_options& how, const std::vector<std::string>& paths, int streams,
                 const tuning_options& options);

// The same for objects on servers: number and size of parts, buffers. `connections`: objects read
// at once. A trial's p99 is of the time to first byte.
tuning tune_http(const engine_options& how, const std::vector<std::string>& urls, int connections,
                 const tuning_options& options);

}  // namespace millrace
