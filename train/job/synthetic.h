#pragma once

#include <c10/core/Device.h>

#include "train/command_line/options.h"
#include "train/loop/control.h"
#include "train/ranks/distributed.h"

namespace millrace {

// Trains for --max-steps on batches that are made once, on the device: what the model alone takes,
// to compare other runs with. Called by all ranks, of a group that is connected. Returns the signal
// that ended it; 0: none. Throws `failure`.
int train_synthetic(const train_options& options, c10::Device device, process_group& group,
                    const train_control& control);

}  // namespace millrace
