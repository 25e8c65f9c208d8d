#pragma once

#include <c10/core/Device.h>

#include "train/command_line/options.h"
#include "train/job/run_inputs.h"

namespace millrace {

// Logs a notice for each option that was given, and has no effect in this run, or not the one that
// it is given for: of GPUs on a CPU, and a warm-up that training ends within. `options`, `found`:
// as prepare() returns them.
void report_no_effect(const train_options& options, const run_inputs& found, c10::Device device);

}  // namespace millrace
