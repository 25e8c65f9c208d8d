#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/base/divided.h"
#include "pipeline/wids/python_random.h"

namespace millrace {

// Orders in which the indices of a dataset are drawn. Those of wids 0.2 give exactly the numbers
// of its Python classes; use even_sampler instead. One thread.

// The indices [begin, end).
struct index_range {
  std::int64_t begin = 0;  // the first index
  std::int64_t end = 0;    // the index after the last
};

// The indices of `ranges`: ranges in a random order if `shuffle_ranges`, those within one in a
// random order if `shuffle_indices`. One generator, random.Random(seed + 1289738273 epoch), serves
// both. Memory: the ranges, and the longest of them.
class range_shuffle {
 public:
  // Shuffles the ranges.
  range_shuffle(std::vector<index_range> ranges, std::int64_t seed, std::int64_t epoch,
                bool shuffle_ranges, bool shuffle_indices);
  // The next index; nullopt after the last one.
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
  std::int64_t seed = 0;              // of the order
  bool shuffle_first = false;         // permute the shards in epoch 0 too

  // The order of an epoch, counted from 0.
  range_shuffle epoch(std::int64_t number) const;
};

// wids.ChunkedSampler: a range of indices in chunks.
struct chunked_sampler {
  index_range samples;         // of the dataset
  std::int64_t chunk = 2000;   // indices of a chunk, at least 1
  std::int64_t seed = 0;       // of the order
  bool shuffle = true;         // permute chunks, and the indices of each
  bool shuffle_first = false;  // permute the chunks in epoch 0 too

  // The order of an epoch, counted from 0. Throws `failure` (usage) for a chunk of no indices.
  range_shuffle epoch(std::int64_t number) const;
};

// wids.DistributedChunkedSampler: contiguous parts of ceil(samples / replicas) indices, the last
// ones shorter or empty, although each claims `claimed_length`. `rank` is taken as given, while
// wids overrides 0.
struct distributed_chunked_sampler {
  std::int64_t samples = 0;        // of the dataset
  std::int64_t replicas = 1;       // ranks, at least 1
  std::int64_t rank = 0;           // in [0, replicas)
  std::int64_t chunk = 1'000'000;  // indices of a chunk, at least 1
  std::int64_t seed = 0;           // of the order
  bool shuffle = true;             // permute chunks, and the indices of each
  bool shuffle_first = false;      // permute the chunks in epoch 0 too

  // The order of this rank's part in an epoch. Throws `failure` (usage) for fields out of range.
  range_shuffle epoch(std::int64_t number) const;
  // The length that wids reports for every part.
  std::int64_t claimed_length() const { return divided_up(samples, replicas); }
};

// Every index once in each epoch over all ranks, in another order each time, epoch 0 included, and
// as many on every rank: the remainder is left out, or some are given twice. Chunks of consecutive
// indices stay together, so that a shard is read once; ranks exchange them each epoch. A pure
// function of (options, epoch, rank).
class even_sampler {
 public:
  // The indices to give, and the rank to give them to.
  struct options {
    std::int64_t samples = 0;     // indices, at least 1
    std::int64_t world_size = 1;  // ranks, at least 1
    std::int64_t rank = 0;        // in [0, world_size)
    std::int64_t chunk = 1000;    // indices that stay together, at least 1
    std::uint64_t seed = 0;       // of the order
    bool repeat = false;          // give some twice rather than leave some out
  };
  // The order of an epoch. Throws `failure` (usage) for options out of range. Memory: 12 bytes for
  // each chunk, and a chunk.
  even_sampler(const options& o, std::int64_t epoch);

  // The number of indices, the same on every rank.
  std::int64_t length() const;
  // The next index; nullopt after the last one.
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
