#pragma once

#include <span>

#include "pipeline/state.h"

namespace millrace {

// The states that the ranks of a job saved at the same step, as one: what any number of ranks is
// resumed from. Pure. Throws `failure` (bad_state) where they are of different plans.
state merged(std::span<const state> of_ranks);

// A state that was saved with one number of lanes, as one for another: what is left of the epoch is
// dealt anew, each sample to one lane, in an order that is a function of the state. From the next
// epoch on the order is that of the new number of lanes. `from` must hold the lanes of all ranks.
// Pure. Throws `failure` (bad_state) where it does not.
state redealt(const state& from, std::int64_t lanes);

}  // namespace millrace
