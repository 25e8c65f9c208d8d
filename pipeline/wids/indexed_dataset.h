#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "pipeline/engine.h"
#include "pipeline/sample.h"
#include "pipeline/shard_index.h"

namespace millrace {

struct indexed_dataset_options {
  // Shards whose sample offsets are kept in memory, of those that have none in the index: the least
  // recently used are forgotten.
  std::size_t lru_shards = 1000;
};

// Samples by their number in an index, over any source: one ranged read each, or one from the cache
// where there is one. A shard without offsets in the index is read through once to find them.
// One thread. The engine outlives it.
class indexed_dataset {
 public:
  indexed_dataset(engine& eng, shard_index index, const indexed_dataset_options& options = {});

  std::int64_t size() const { return size_; }
  const shard_index& index() const { return index_; }

  // Which sample of which shard number `i` is. Throws `failure` (usage) outside [0, size()).
  struct place {
    std::size_t shard = 0;
    std::int64_t sample = 0;
  };
  place find(std::int64_t i) const;

  // Blocks. Throws `failure`: usage outside [0, size()), integrity where the shard is not what the
  // index says, or an error of reading it.
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
