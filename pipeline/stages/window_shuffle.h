#pragma once

#include <cstdint>

#include "pipeline/plan/plan.h"
#include "pipeline/shards/shards.h"

namespace millrace {

// Options of window_shuffle().
struct window_options {
  std::size_t samples = 100'000;  // of a window, over all lanes of all ranks; at least 1
  std::uint64_t seed = 0;         // of the order
  int ahead = 16;                 // samples that a lane reads at once, 1 to 65,536
};

// A shuffle without a buffer of samples, for plain archives with an index of offsets, where reading
// at random places is cheap: NVMe, the page cache, caches, object stores. A lane takes its next
// shards until they have as many samples as its part of a window, permutes them all, and reads each
// sample separately; a window of the whole list permutes each lane's epoch completely. Replaces
// untar() and group_by_key().
//
// The order is a function of (seed, epoch, lane). Its state is a few numbers, whatever the window;
// it resumes with any number of ranks, but with the same number of lanes. Errors concern one sample
// each, and are skippable. Memory: 12 bytes for each sample of a window.
//
// Throws `failure` (usage) for options out of range, and when it is run if the plan has no index
// with offsets (indexed_shards) or a shuffle() after it.
lane_stage<shard_ref, sample> window_shuffle(const window_options& options = {});

}  // namespace millrace
