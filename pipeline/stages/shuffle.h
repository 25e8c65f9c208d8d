#pragma once

#include "pipeline/plan/plan.h"

namespace millrace {

// Options of shuffle().
struct shuffle_options {
  // Samples held, over the lanes of all ranks, at least 1; more mix better but delay the start.
  std::size_t samples = 1000;
  std::uint64_t seed = 0;  // of the order
  // Payload bytes held, over the lanes of all ranks; 0: half of this rank's memory budget. Part of
  // the order: if it is reached, fewer samples are held (and a notice says so).
  std::size_t bytes = 0;
};

// Shuffles each lane through a buffer: gives a random one of the samples held and takes in another.
// Drains at the end of an epoch, so each epoch yields all of its samples. The order is a function
// of (seed, epoch, lane) and the samples, whatever the timing. Held samples are copied, so that
// they keep no read buffer alive. A state lists them by their places; a restored shuffle reads a
// sample again when its turn comes, together with those near it. Example: examples/epoch.cc.
struct shuffle_stage {
  using input = sample;
  using output = sample;
  shuffle_options options;  // checked by shuffle()
};
// Makes the stage. Any thread. Throws `failure` (usage) for options out of range.
shuffle_stage shuffle(const shuffle_options& options = {});

// Appends the stage. Throws `failure` (usage) if the lanes are shuffled already, also by
// window_shuffle().
lane_plan<sample> operator|(lane_plan<sample> front, const shuffle_stage& back);

}  // namespace millrace
