#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pipeline/engine.h"
#include "pipeline/images/image.h"
#include "pipeline/ledger.h"
#include "pipeline/stages/map.h"
#include "train/checkpoint_folder.h"
#include "train/distributed.h"
#include "train/epoch_facts.h"
#include "train/options.h"
#include "train/validation.h"

namespace millrace {

// A job's identity, and its messages at the beginning and end.

// "auto", "cpu" or "cuda" as a device of this host. Throws `failure` (unsupported).
c10::Device pick_device(const std::string& name, int local_rank);

// Called by all ranks: throws `failure` (usage) on all of them where one has other arguments, other
// inputs or another kind of device than rank 0, saying which.
void agree_on_terms(const train_options& options, c10::Device device, process_group& group);

// Called by all ranks, before the first step: finds the inputs, and checks them and what the run
// writes. Returns the device, which the group is connected for. Throws `failure` on all or on none.
c10::Device prepare(train_options& options, const engine_options& engine, process_group& group);

// A unique name for a run.
std::string new_run_name();

// The checkpoint that the run is resumed from, seen to be whole; nullopt: none. Throws `failure`
// where --checkpoint-dir may not be written to then. On rank 0.
std::optional<chosen_checkpoint> choose_start(const train_options& options);

// Throws `failure` (usage) where a saved state is of another list of shards than a fresh one of
// this run with as many lanes.
void check_same_shards(const state& saved, const state& fresh);

// The first lines: for the metrics file, and for people. `each_epoch` is 0 and `left` below 0 where
// nothing is known of them.
std::string begin_line(const train_options& options, const job_place& place, const std::string& run,
                       std::int64_t step, std::int64_t parameters);
std::string resumed_line(const std::string& checkpoint, std::int64_t step);
std::string banner(const train_options& options, const job_place& place, c10::Device device,
                   std::int64_t parameters, number_of_steps each_epoch, number_of_steps left);

// Throws `failure` (usage) where the folder (empty: none) holds batches of this step or later ones;
// of a run that is not resumed, anything.
void check_recorded(const std::string& folder, std::int64_t step, bool is_resumed);
// Writes a batch into `folder`, as images and labels (safetensors). Throws `failure` (io_failed).
void record(const host_batch& b, const std::string& folder, const job_place& place,
            std::int64_t step);

// That an epoch ended before its first step, and why.
error no_step(const train_options& options, const ledger& counts);

// What came and what was skipped in an epoch that is over: a line of metrics.
std::string json_of(const ledger::epoch& over, std::int64_t epoch, std::int64_t step);

// The last ones.
struct run_figures {
  job_place place;
  int signal = 0;  // that ended it; 0: it is done
  std::int64_t step = 0;
  std::int64_t epoch = 0;    // epochs that are over
  std::int64_t samples = 0;  // of this rank, in this process
  double seconds = 0;
  double cpu_seconds = 0;
  double waiting = 0;
  std::optional<double> loss;  // of the last step; none where no step was taken
  std::optional<validation_figures> validation;
  run_stats stats;
  ledger counts;
};
std::string json_of(const run_figures& f);
// The lines of all ranks as one of the job: sums, but for what the ranks share and the longest of
// their waits.
std::string json_of_job(const std::vector<std::string>& of_ranks);
std::string text_of(const run_figures& f);

}  // namespace millrace
