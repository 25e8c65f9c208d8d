#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/engine.h"
#include "pipeline/images/image.h"
#include "train/distributed.h"
#include "train/options.h"

namespace millrace {

// Samples of an epoch over all ranks, as the index or the class folders say; 0: not known.
std::int64_t known_samples(const train_options& options, const job_place& place);
// Batches of each rank's epoch; 0: not known before the first one is over.
std::int64_t known_epoch_batches(const train_options& options, const job_place& place);

// Samples of the rank that has the fewest in the first epoch, of shards with so many samples each;
// for an epoch that is one pass over shards whose lengths no index says. Pure.
std::int64_t least_of_a_rank(const train_options& options, const job_place& place,
                             const std::vector<std::int64_t>& samples);

// Samples that no rank gets in an epoch of so many lanes (0: those of the options), so that all
// have as many: known with an index.
std::uint64_t left_out_of_epoch(const train_options& options, const job_place& place, int lanes);

// The batches that rank `place.rank` trains on, epoch after epoch. Throws `failure` (usage).
plan<host_batch> training_plan(const train_options& options, const job_place& place);

// The images that it validates on: each once, in the shards' own order. Throws `failure` (usage).
plan<host_batch> validation_plan(const train_options& options, const job_place& place);

// What the state of such a run may take in memory where it is read: the budget, and what its text
// takes as a tree for the samples that the run holds at the most. A state that a run saved is read
// again under the same options and budget.
std::size_t state_bytes(const train_options& options, const engine_options& engine);

// The error that ends a run, with how the run goes on without the sample, where --on-error may say
// so and does not.
error with_policy(const error& why, const train_options& options);
// The error, said to be of the validation: its shards are others than training's.
error of_validation(const error& why);

}  // namespace millrace
