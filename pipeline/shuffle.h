#pragma once

#include "pipeline/plan.h"

namespace millrace {

struct shuffle_options {
  // Samples held, over the lanes of all ranks; more mixes better and starts later.
  std::size_t samples = 1000;
  std::uint64_t seed = 0;
  // Payload bytes held, over the lanes of all ranks; 0: half of this rank's memory budget. Part of
  // the order: where it is reached, fewer samples are held (and a notice says so).
  std::size_t bytes = 0;
};

// Shuffles each lane through a buffer: a random one of the samples held is given out and another
// taken in. Drains at the end of an epoch, so each epoch yields all of its samples. The order is a
// function of (seed, epoch, lane) and the samples, whatever the timing. Held samples are copied, so
// that they keep no read buffer alive.
lane_stage<sample, sample> shuffle(const shuffle_options& options = {});

// What a shuffle's record says that it holds, and a record of one that holds so much at the begin
// of its order.
std::vector<origin> shuffle_held(const state& from, const std::string& name);
void put_shuffle_held(state& to, const std::string& name, std::int64_t epoch,
                      const std::vector<origin>& held);

}  // namespace millrace
