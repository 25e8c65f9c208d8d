#pragma once

#include "pipeline/engine.h"
#include "train/distributed.h"
#include "train/options.h"

namespace millrace {

// The batches that rank `place.rank` trains on, epoch after epoch. Throws `failure` (usage).
plan<host_batch> training_plan(const train_options& options, const job_place& place);

// The images that it validates on: each once, in the shards' own order.
plan<host_batch> validation_plan(const train_options& options, const job_place& place);

}  // namespace millrace
