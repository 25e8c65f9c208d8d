#pragma once

#include <cstdint>

#include "pipeline/plan.h"
#include "pipeline/shards.h"

namespace millrace {

struct window_options {
  std::size_t samples = 100'000;  // in a window, over all lanes of all ranks
  std::uint64_t seed = 0;
  int ahead = 16;  // samples that a lane reads at once
};

// A shuffle without a buffer of samples, for plain archives with an index of offsets, where reading
// at random places costs little: NVMe, the page cache, caches, object stores. A lane takes its next
// shards until they have as many samples as its part of a window, permutes them all, and reads each
// sample separately; a window of the whole list permutes each lane's epoch completely. Replaces
// untar and group_by_key.
//
// The order is a function of (seed, epoch, lane). Its state is a few numbers, whatever the window;
// it resumes with any number of ranks, but with the same number of lanes. Errors concern one sample
// each, and are skippable. Memory: 12 bytes for each sample of a window.
//
// Throws `failure` (usage) for windows of no samples, and when it is run where the plan has no
// index with offsets (indexed_shards), or a shuffle() behind it.
lane_stage<shard_ref, sample> window_shuffle(const window_options& options = {});

}  // namespace millrace
