#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "pipeline/run/engine.h"
#include "train/command_line/options.h"
#include "train/job/epoch_facts.h"
#include "train/job/run_inputs.h"
#include "train/ranks/distributed.h"

namespace millrace {

// The beginning of a run: what its ranks agree on, what it begins with, and its first lines.

// Called by all ranks: throws `failure` (usage) on all of them if one differs from rank 0 in its
// arguments, inputs or kind of device, saying which.
void agree_on_terms(const train_options& options, const run_inputs& found, c10::Device device,
                    process_group& group);

// A run as its ranks have agreed on it.
struct prepared_run {
  // As given, but with the URLs of the shards, the kind of device, rank 0's --resume, the content
  // of an exported model in place of its file in `said`, and the list of skipped samples only on
  // the ranks that write one.
  train_options options;
  run_inputs found;
  c10::Device device = c10::kCPU;  // of this rank
};
// Called by all ranks, before the first step: finds the inputs, checks inputs and outputs, and
// connects the group for the device. Throws `failure` on all or on none.
prepared_run prepare(const train_options& given, const engine_options& engine,
                     process_group& group);

// The first lines, for the metrics file and for people. `start`: a name of this start of the run,
// the same on all ranks. Unknown: `each_epoch` 0, `left` below 0.
std::string begin_line(const train_options& options, const data_ranks& parts,
                       const job_place& place, const std::string& run, const std::string& start,
                       std::int64_t step, std::int64_t parameters);
std::string resumed_line(const std::string& checkpoint, std::int64_t step);
std::string banner(const prepared_run& run, const job_place& place, std::int64_t parameters,
                   number_of_steps each_epoch, number_of_steps left);

}  // namespace millrace
