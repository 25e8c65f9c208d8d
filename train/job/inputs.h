#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/run/engine.h"
#include "train/checkpoints/checkpoint_files.h"
#include "train/command_line/options.h"
#include "train/job/run_inputs.h"
#include "train/ranks/distributed.h"

namespace millrace {

// Finds and checks the inputs before training. All throw `failure`.

// Replaces shard specs by the URLs that they name, and reads the indexes, which also name the
// shards if the options do not. Returns what it found out of them; the ranks are yet to agree on
// `parts`, and `counted_batches` is 0.
run_inputs find_inputs(train_options& options, const engine_options& how);

// The entries of `said` for `urls`, in their order, matched by index_entries. Throws usage, naming
// the shard.
shard_index entries_of(const shard_index& said, const std::vector<std::string>& urls,
                       const std::string& where);

// Describes how two sorted lists of class folders differ; empty: they do not. `where`: the other
// side, such as "in the checkpoint". Pure.
std::string differing_classes(std::span<const std::string> here, std::span<const std::string> there,
                              std::string_view where);
// Throws `failure` (usage), naming the differences, if a checkpoint was saved with class folders
// other than those of --raw. Does nothing if either has none.
void check_same_classes(std::span<const std::string> saved, const train_options& options,
                        const run_inputs& found);

// The names of the shards as checkpoints record them; empty if there are too many for that.
std::vector<std::string> recorded_shards(const train_options& options);
// Throws `failure` (usage; not_found, if some are gone and none is new) if a saved state belongs to
// another list of shards than `fresh`, a new state of this run with as many lanes, naming those
// that are gone or new. `shards`: of this run, as recorded_shards().
void check_same_shards(const checkpoint_record& saved, const state& fresh,
                       const std::vector<std::string>& shards);

// A fingerprint of the shards, training's and validation's, and of their lengths.
std::string inputs_fingerprint(const train_options& options, const run_inputs& found);
// A fingerprint of everything but the weights that validation figures depend on, and of whether
// these are an average: the URLs of the shards, their facts (from this host, their store or their
// index), their labels, and how images are decoded. Ranks may see different files; rank 0's
// fingerprint is the job's.
std::string validation_fingerprint(const train_options& options, const run_inputs& found);

// Checks what can be known before the first step: that local shards can be opened, that the first
// training and the first validation shard hold samples with labels below --classes (by the policy
// for bad samples; rank 0 looks), and that a batch is not larger than the data. Reads as little of
// remote shards as possible.
void check_inputs(const train_options& options, const run_inputs& found, const job_place& place,
                  const engine_options& how);

// The smallest number of batches of any rank in the first epoch, counted from the headers of small
// local shards when there is no index. 0: unknown. Throws usage if it is none.
std::int64_t count_first_epoch(const train_options& options, const run_inputs& found,
                               const engine_options& how);

}  // namespace millrace
