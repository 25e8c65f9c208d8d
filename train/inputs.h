#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/engine.h"
#include "train/distributed.h"
#include "train/options.h"

namespace millrace {

// Finds and checks the inputs before training. All throw `failure`.

// Replaces shard specs by the URLs that they name, and reads the index, which names the training
// shards itself where the options do not.
void find_inputs(train_options& options, const engine_options& how);

// The entries of `said` for `urls`, in their order, found as index_entries does. Throws usage,
// naming the shard.
shard_index entries_of(const shard_index& said, const std::vector<std::string>& urls,
                       const std::string& where);

// In which names of class folders, sorted, two sides differ, in words; empty: in none. `where`: the
// other side, "in the checkpoint". Pure.
std::string differing_classes(std::span<const std::string> here, std::span<const std::string> there,
                              std::string_view where);
// Throws `failure` (usage) where a checkpoint was saved with other class folders than those of
// --raw, naming them; where either has none, nothing.
void check_same_classes(std::span<const std::string> saved, const train_options& options);

// A fingerprint of the shards, training's and validation's, and of their lengths.
std::string inputs_fingerprint(const train_options& options);
// Of what the figures of validation depend on, but for the weights: its shards, by their URLs and
// by what this host, their store or their index says of them, their labels, and how images are
// decoded. Ranks may see other files: rank 0's is the job's.
std::string validation_fingerprint(const train_options& options);

// Checks what can be known before the first step: that local shards can be opened, that the first
// training and the first validation shard hold samples with labels below --classes (by the policy
// for bad samples; rank 0 looks), and that a batch is not larger than the data. Reads as little of
// remote shards as possible.
void check_inputs(const train_options& options, const job_place& place, const engine_options& how);

// Counts the batches of the rank that has the fewest in the first epoch, where no index says them:
// of small local shards, whose headers are read in no time. 0: not known. Throws usage where that
// is none.
std::int64_t count_first_epoch(const train_options& options, const job_place& place,
                               const engine_options& how);

}  // namespace millrace
