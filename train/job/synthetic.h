#pragma once

#include "train/job/job.h"
#include "train/loop/control.h"
#include "train/ranks/distributed.h"

namespace millrace {

// Trains for --max-steps on batches that are made once, on the device: what the model alone takes,
// to compare other runs with. Called by all ranks, of a group that is connected. Returns the signal
// that ended it; 0: none. Throws `failure`.
int train_synthetic(const prepared_run& run, process_group& group, const train_control& control);

}  // namespace millrace
