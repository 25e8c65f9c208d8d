#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/divided.h"
#include "pipeline/wids/python_random.h"

namespace millrace {

// The order in which the indices of a dataset are drawn. Those of wids 0.2 give the very numbers
// that its Python classes give; use `even_sampler` instead. One thread.

// Half-open.
struct index_range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// The indices of `ranges`: ranges in a random order where `shuffle_ranges`, those within one in a
// random order where `shuffle_indices`. One generator, random.Random(seed + 1289738273 epoch),
// serves both. Memory: the ranges, and the longest of them.
class range_shuffle {
 public:
  range_shuffle(std::vector<index_range> ranges, std::int64_t seed, std::int64_t epoch,
                bool shuffle_ranges, bool shuffle_indices);
  std::optional<std::int64_t> next();

 private:
  std::vector<index_range> ranges_;
  bool shuffle_indices_;
  python_random random_;
  std::size_t next_range_ = 0;
  std::vector<std::int64_t> indices_;
  std::size_t at_ = 0;
};

// wids.ShardListSampler: shard by shard, in the list's own order in epoch 0 unless `shuffle_first`.
struct shard_list_sampler {
  std::vector<std::int64_t> lengths;  // samples of each shard
  std::int64_t seed = 0;
  bool shuffle_first = false;

  range_shuffle epoch(std::int64_t number) const;
};

// wids.ChunkedSampler over [begin, end), in chunks of so many.
struct chunked_sampler {
  index_range samples;
  std::int64_t chunk = 2000;
  std::int64_t seed = 0;
  bool shuffle = true;
  bool shuffle_first = false;

  range_shuffle epoch(std::int64_t number) const;
};

// wids.DistributedChunkedSampler: contiguous parts of ceil(samples / replicas), the last ones
// shorter or empty, though each claims `claimed_length`. `rank` is taken as given, where wids
// overrides 0.
struct distributed_chunked_sampler {
  std::int64_t samples = 0;
  std::int64_t replicas = 1;
  std::int64_t rank = 0;
  std::int64_t chunk = 1'000'000;
  std::int64_t seed = 0;
  bool shuffle = true;
  bool shuffle_first = false;

  range_shuffle epoch(std::int64_t number) const;
  std::int64_t claimed_length() const { return divided_up(samples, replicas); }
};

// Every index once in each epoch over all ranks, in another order each time, epoch 0 included, and
// as many on every rank: the remainder is left out, or some are given twice. Chunks of consecutive
// indices stay together, so that a shard is read once; ranks trade them each epoch. A pure function
// of (options, epoch, rank).
class even_sampler {
 public:
  struct options {
    std::int64_t samples = 0;
    std::int64_t world_size = 1;
    std::int64_t rank = 0;
    std::int64_t chunk = 1000;  // indices that stay together
    std::uint64_t seed = 0;
    bool repeat = false;  // give some twice rather than leave some out
  };
  // Throws `failure` (usage) for a rank outside the world, no samples, or a chunk of none.
  even_sampler(const options& o, std::int64_t epoch);

  // Of every rank.
  std::int64_t length() const;
  std::optional<std::int64_t> next();

 private:
  void load_chunk(std::int64_t place);

  options options_;
  std::int64_t epoch_;
  std::vector<std::uint32_t> order_;  // of chunks
  std::vector<std::int64_t> firsts_;  // places at which the chunks begin, in that order
  std::vector<std::int64_t> chunk_;   // the indices of the current one, shuffled
  std::size_t which_ = 0;
  std::int64_t given_ = 0;
};

}  // namespace millrace
