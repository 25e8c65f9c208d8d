#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "pipeline/plan/ledger.h"
#include "pipeline/run/engine.h"
#include "train/command_line/options.h"
#include "train/job/learner.h"
#include "train/job/run_inputs.h"
#include "train/loop/control.h"
#include "train/ranks/distributed.h"

namespace millrace {

// Means over the images of all ranks, and what came of their samples.
struct validation_figures {
  double loss = 0;
  double top1 = 0;
  double top5 = 0;
  double images = 0;
  double seconds = 0;
  ledger counts = {};  // the messages of skipped samples are this rank's
};
std::string json_of(const validation_figures& v, std::int64_t epoch, std::int64_t step);
std::string text_of(const validation_figures& v, std::int64_t epoch);

// Called by all ranks: each image of the validation shards once. They agree on every batch, so that
// ranks with less to do wait for the others without a limit, and all end when one is asked to:
// nullopt then, and the signal in `ending`. What fails on one rank is thrown on all, as a failure
// of the validation.
std::optional<validation_figures> run_validation(const train_options& options,
                                                 const run_inputs& found, engine& eng,
                                                 learner& with, process_group& group,
                                                 const train_control& control, int& ending);

}  // namespace millrace
