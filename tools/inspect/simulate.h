#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/shards/shards.h"

namespace millrace {

// How many batches of which size a rank gets in one epoch: sizes with their numbers, most numerous
// first, ties in the order in which they first came (Python's Counter.most_common()).
using batch_histogram = std::vector<std::pair<std::int64_t, std::int64_t>>;

// "[(10, 36), (8, 1)]", as Python prints it.
std::string python_text(const batch_histogram& batches);

// Python WebDataset under a DataLoader: shards are split by node, then by worker; each worker
// batches its own samples, `dataset_repeat` times over; the loader takes turns with its workers,
// `repeat` times over, and stops after `batches`. Source: wds-distributed, simdist.py.
struct loader_simulation {
  std::vector<std::int64_t> samples;  // of each shard
  int world_size = 3;
  int workers = 3;  // of each rank; 0: the rank itself
  std::int64_t batch_size = 10;
  std::int64_t batches = 999'999;
  bool partial = false;  // keep the last, smaller batch of each pass
  int repeat = 1;
  int dataset_repeat = 1;

  // The shards of a worker, by their index. Throws `failure` (stopped) where the program is asked
  // to end meanwhile.
  std::vector<std::size_t> shards_of(int rank, int worker) const;
  batch_histogram rank(int r) const;
};

// One epoch of millrace over shards of known length.
struct epoch_figures {
  std::string mode;
  std::vector<std::int64_t> batches;  // of each rank
  std::int64_t delivered = 0;         // samples, repeated ones included
  std::int64_t dropped = 0;
  std::int64_t repeated = 0;
  // Share of the ranks' total time in the epoch that they spend waiting for the slowest rank.
  double idle = 0;
};
// Returns the figures of the first epoch for the modes "exact", "equal, unknown" (no index: all
// ranks stop when the first has no further batch), "equal, dropping" and "equal, repeating".
// `has_offsets`: the index has the offsets of samples, so the samples of few shards are
// distributed.
std::vector<epoch_figures> simulate_modes(const std::vector<std::int64_t>& samples,
                                          bool has_offsets, int world_size, std::int64_t batch_size,
                                          bool drop_last, int lanes, std::uint64_t seed);

// How well an order mixes: samples of a list, sorted by class, in the order in which one epoch
// gives them.
struct shuffle_quality {
  std::string name;
  double moved = 0;       // mean distance from the place in the list, as a part of its length;
                          // 1/3 for a full permutation
  double neighbours = 0;  // part of neighbours that were within 100 places of each other before
  double classes = 0;     // classes in a batch of 256 on average, as a part of those that a full
                          // permutation has
};
struct quality_options {
  std::int64_t shards = 100;
  std::int64_t samples_per_shard = 1000;
  std::int64_t classes = 1000;
  std::size_t buffer = 10'000;  // samples that the shuffle holds
  int lanes = 8;
  int workers = 4;  // of the Python loader, each with a buffer of its own of buffer / workers
  std::uint64_t seed = 0;
};
// A full permutation; millrace's lanes with a buffer, with windows of as many samples, and with a
// window of the whole list; WebDataset's workers; and no shuffle of samples at all.
std::vector<shuffle_quality> simulate_quality(const quality_options& options);

}  // namespace millrace
