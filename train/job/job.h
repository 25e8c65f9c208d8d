#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pipeline/pixels/image.h"
#include "pipeline/plan/ledger.h"
#include "pipeline/run/engine.h"
#include "pipeline/stages/map.h"
#include "train/checkpoints/checkpoint_folder.h"
#include "train/command_line/options.h"
#include "train/job/epoch_facts.h"
#include "train/job/validation.h"
#include "train/loop/report.h"
#include "train/ranks/distributed.h"

namespace millrace {

// A job's identity, and its messages at the beginning and end.

// Called by all ranks: throws `failure` (usage) on all of them if one differs from rank 0 in its
// arguments, inputs or kind of device, saying which.
void agree_on_terms(const train_options& options, c10::Device device, process_group& group);

// Called by all ranks, before the first step: finds the inputs, checks inputs and outputs, and
// connects the group for the device, which it returns. Throws `failure` on all or on none.
c10::Device prepare(train_options& options, const engine_options& engine, process_group& group);

// The names of the shards as checkpoints record them; empty if there are too many for that.
std::vector<std::string> recorded_shards(const train_options& options);
// Throws `failure` (usage; not_found, if some are gone and none is new) if a saved state belongs to
// another list of shards than `fresh`, a new state of this run with as many lanes, naming those
// that are gone or new. `shards`: of this run, as recorded_shards().
void check_same_shards(const checkpoint_record& saved, const state& fresh,
                       const std::vector<std::string>& shards);

// The first lines, for the metrics file and for people. `start`: a name of this start of the run,
// the same on all ranks. Unknown: `each_epoch` 0, `left` below 0.
std::string begin_line(const train_options& options, const job_place& place, const std::string& run,
                       const std::string& start, std::int64_t step, std::int64_t parameters);
std::string resumed_line(const std::string& checkpoint, std::int64_t step);
std::string banner(const train_options& options, const job_place& place, c10::Device device,
                   std::int64_t parameters, number_of_steps each_epoch, number_of_steps left);

// Throws `failure` (usage) if the folder (empty: none) holds batches of this step or later ones,
// or, unless the run is resumed, anything.
void check_recorded(const std::string& folder, std::int64_t step, bool is_resumed);
// Writes a batch into `folder`, as images and labels (safetensors). Throws `failure` (io_failed).
void record(const host_batch& b, const std::string& folder, const job_place& place,
            std::int64_t step);

// The error that an epoch ended before its first step, with the reason.
error no_step(const train_options& options, const ledger& counts);

// The delivered and skipped samples of a finished epoch, as a line of metrics.
std::string json_of(const ledger::epoch& over, std::int64_t epoch, std::int64_t step);

// The figures of the last lines.
struct run_figures {
  job_place place;
  data_ranks parts;
  int signal = 0;  // that ended it; 0: none
  std::int64_t step = 0;
  std::int64_t epoch = 0;    // finished epochs
  std::int64_t samples = 0;  // of this rank, in this process
  double seconds = 0;
  double cpu_seconds = 0;
  double waiting = 0;
  std::optional<double> loss;  // of the last step; nullopt: no step was taken
  std::optional<validation_figures> validation;
  run_stats stats;
  ledger counts;
};
// Called by all ranks: writes the last lines of this rank and, if `as_json`, on rank 0 the object
// of the job: sums over all ranks, except for shared values and the longest wait; of ranks that
// share a part of the data, the samples count once.
void report_run(const run_figures& f, reporter& to, process_group& group, bool as_json);

}  // namespace millrace
