#pragma once

#include "pipeline/plan/plan.h"

namespace millrace {

// The lanes of this rank as one stream, sample by sample: always from the lane whose next sample
// has the lowest position; a lane that has finished the epoch is skipped. Sets each sample's
// position. An epoch without a single sample is an error (no_samples). Appending a stage to a
// lane_plan calls it where necessary.
//
// Samples that later stages hold when the state is saved are given back to their lanes and come out
// first again; this makes a state independent of the number of ranks and threads.
plan<sample> interleaved(lane_plan<sample> lanes);

}  // namespace millrace
