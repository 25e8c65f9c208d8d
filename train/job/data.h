#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/pixels/image.h"
#include "pipeline/run/engine.h"
#include "train/command_line/options.h"
#include "train/job/run_inputs.h"

namespace millrace {

// Samples of an epoch over all ranks, according to the index or the class folders; 0: unknown.
std::int64_t known_samples(const train_options& options, const run_inputs& found);
// Batches of each rank's epoch, or of the first one's where that varies; 0: unknown until the first
// one is over.
std::int64_t known_epoch_batches(const train_options& options, const run_inputs& found);

// The number of samples of each rank in the first epoch of one pass over the data, for shards with
// `of_shards` samples each. Pure.
std::vector<std::int64_t> samples_of_ranks(const train_options& options, const run_inputs& found,
                                           const std::vector<std::int64_t>& of_shards);
// The batches that each rank takes of an epoch in which the ranks have so many samples.
std::int64_t batches_of_ranks(const train_options& options,
                              const std::vector<std::int64_t>& samples);

// Samples left out of an epoch to make its lanes equal, with `lanes` lanes (0: as the options say);
// known with an index.
std::uint64_t left_out_of_epoch(const train_options& options, const run_inputs& found, int lanes);

// The batches of this rank's part of the data, epoch after epoch. Throws `failure` (usage).
plan<host_batch> training_plan(const train_options& options, const run_inputs& found);

// The images of this rank's part of the validation shards: each once, in the order of the shards.
// Throws `failure` (usage).
plan<host_batch> validation_plan(const train_options& options, const run_inputs& found);

// The memory that such a run's state may take when it is read: the budget, plus the parsed text of
// the most samples that the run can hold. So a run can always read its own state under the same
// options and budget.
std::size_t state_bytes(const train_options& options, const engine_options& engine);

// The error that ends a run. Its hint names --on-error if that could have skipped the sample.
error with_policy(const error& why, const train_options& options);
// The error, marked as one of validation, whose shards are not training's.
error of_validation(const error& why);

}  // namespace millrace
