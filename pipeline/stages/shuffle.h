#pragma once

#include "pipeline/plan.h"

namespace millrace {

struct shuffle_options {
  // Samples held, over the lanes of all ranks; more mixes better but delays the start.
  std::size_t samples = 1000;
  std::uint64_t seed = 0;
  // Payload bytes held, over the lanes of all ranks; 0: half of this rank's memory budget. Part of
  // the order: where it is reached, fewer samples are held (and a notice says so).
  std::size_t bytes = 0;
};

// Shuffles each lane through a buffer: it returns a random one of the samples held and takes in
// another. Drains at the end of an epoch, so each epoch yields all of its samples. The order is a
// function of (seed, epoch, lane) and the samples, whatever the timing. Held samples are copied, so
// that they keep no read buffer alive. A state lists them by their places; restored, the shuffle
// reads one again when its turn comes, together with those that lie near it.
// Throws `failure` (usage) for invalid options; a plan with two shuffles, one after the other, or
// with one after window_shuffle(), throws the same when it is put together.
struct shuffle_stage {
  using input = sample;
  using output = sample;
  shuffle_options options;
};
shuffle_stage shuffle(const shuffle_options& options = {});

lane_plan<sample> operator|(lane_plan<sample> front, const shuffle_stage& back);

}  // namespace millrace
