#pragma once

#include "pipeline/run/engine.h"
#include "train/command_line/options.h"
#include "train/loop/control.h"

namespace millrace {

// Trains as `options` say, on the data and in the job that they and the environment name. Returns
// the exit code: 0, or 128 + the signal that a rank was asked to end by. Throws `failure`; what can
// be known at the start is thrown before the first step, on all ranks alike.
//
// One call at a time; the calling thread drives the model.
int train(const train_options& options, const engine_options& engine,
          const train_control& control = {});

}  // namespace millrace
