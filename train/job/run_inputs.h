#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/stores/listing.h"
#include "pipeline/shards/shard_index.h"
#include "train/ranks/data_ranks.h"

namespace millrace {

// The facts of a run's data that prepare() finds, other than the URLs of the shards: facts of this
// host's files and of the indexes, and who reads which part.
struct run_inputs {
  std::shared_ptr<const shard_index> lengths;      // of train_options::shards, in their order
  std::shared_ptr<const shard_index> val_lengths;  // of train_options::val_shards, in their order
  object_sizes val_sizes;                          // of validation shards, as listed by stores
  std::int64_t raw_files = 0;                      // how many train_options::raw holds
  std::uint64_t raw_names = 0;            // a fingerprint of their names, and of their classes'
  std::vector<std::string> raw_classes;   // the names of its classes, for messages
  std::vector<std::string> raw_empty;     // those of them without a file
  std::vector<std::string> raw_left_out;  // its files that are not samples
  data_ranks parts;                       // who reads which, once the ranks have agreed on it
  std::int64_t counted_batches = 0;       // of each rank's first epoch, if counted; 0: not counted
};

}  // namespace millrace
