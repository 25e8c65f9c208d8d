#pragma once

#include <vector>

#include "pipeline/run_context.h"
#include "pipeline/sample.h"

namespace millrace {

// Reads the samples at `where` again, in that order: what a restored stage held. Each shard is read
// forward once, from the first sample wanted of it; a wide gap is jumped over. The samples have
// memory of their own, from `memory`, or, where it is null, from that of the lane's members. Fails
// with bad_state where a shard no longer holds a sample at its offset. The first `stages` sample
// stages of the lane are applied.
awaitable<result<std::vector<sample>>> fetch_samples(lane_context& lane,
                                                     std::shared_ptr<memory_share> memory,
                                                     std::vector<origin> where, std::size_t stages);

}  // namespace millrace
