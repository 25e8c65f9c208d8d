#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/host/job_place.h"
#include "pipeline/plan/ledger.h"
#include "pipeline/run/engine.h"
#include "train/job/validation.h"
#include "train/loop/report.h"
#include "train/ranks/data_ranks.h"
#include "train/ranks/distributed.h"

namespace millrace {

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
