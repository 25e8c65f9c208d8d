#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "pipeline/run/engine.h"
#include "pipeline/samples/sample.h"
#include "pipeline/shards/shard_index.h"

namespace millrace {

// Options of an indexed_dataset.
struct indexed_dataset_options {
  // Shards without offsets in the index whose offsets are kept in memory; the least recently used
  // are forgotten. 0 counts as 1.
  std::size_t lru_shards = 1000;
};

// Samples by their number in an index, over any source: each takes one ranged read, or one from the
// cache if there is one. A shard without offsets in the index is read through once to find them.
// One thread. The engine must outlive it. Example: examples/random_access.cc.
class indexed_dataset {
 public:
  // Reads nothing yet. `index` from read_index().
  indexed_dataset(engine& eng, shard_index index, const indexed_dataset_options& options = {});

  // The number of samples.
  std::int64_t size() const { return size_; }
  // The index. Lives as long as this.
  const shard_index& index() const { return index_; }

  // The shard and the number in it of a sample.
  struct place {
    std::size_t shard = 0;    // index in the list of shards
    std::int64_t sample = 0;  // number within the shard, from 0
  };
  // The place of sample `i`. Throws `failure` (usage) outside [0, size()).
  place find(std::int64_t i) const;

  // Reads sample `i`. Blocks. Throws `failure`: usage outside [0, size()), integrity if the shard
  // is not as the index says, unsupported for a compressed shard, or an error of reading it.
  sample get(std::int64_t i);

 private:
  const std::vector<std::uint32_t>& blocks_of(std::size_t shard);

  engine& engine_;
  shard_index index_;
  indexed_dataset_options options_;
  std::vector<std::int64_t> first_;  // of each shard
  std::int64_t size_ = 0;
  std::map<std::size_t, std::vector<std::uint32_t>> found_;
  std::vector<std::size_t> by_use_;  // of those found, the last used last
  std::vector<bool> checked_;        // whether the length of a shard is that of the index
};

}  // namespace millrace
