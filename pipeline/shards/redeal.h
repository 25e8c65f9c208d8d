#pragma once

#include <cstdint>
#include <span>

#include "pipeline/state/dealing.h"
#include "pipeline/state/state.h"

namespace millrace {

// Converts a state to another number of lanes: distributes the rest of the epoch again, each sample
// to one lane, in an order that is a function of the state. From the next epoch on the order is
// that of the new number of lanes. `from` must hold the lanes of all ranks: see merged().
// `records`: the plan's, lane_plan::records. Pure. Throws `failure` (bad_state) if `from` lacks
// lanes, if a lane has given samples of a later epoch than others are in, or counted such as
// failed, if it has samples to pass over (skipping()), and if lanes keep records that are not in
// `records` or cannot be redistributed, as those of a mix and of windows.
state redealt(const state& from, std::int64_t lanes, std::span<const lane_dealer> records);

}  // namespace millrace
