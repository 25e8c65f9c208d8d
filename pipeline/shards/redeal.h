#pragma once

#include <cstdint>
#include <span>

#include "pipeline/state/dealing.h"
#include "pipeline/state/state.h"

namespace millrace {

// Merges the states that the ranks of a job saved at the same step into one, from which any number
// of ranks can resume. Pure. Throws `failure` (bad_state) if they are of different plans, or two of
// one rank. Example: examples/resume.cc.
state merged(std::span<const state> of_ranks);

// A fingerprint of everything in which the ranks of a job must agree: the list of shards (and, if
// samples are distributed, their lengths), the seed, the number of lanes, the epoch mode, whether
// shards are permuted, and the sources of mixes, with all this of each. `of` is a state from
// loader::save(), even before the first next(). Ranks compare it when they start: if it differs,
// some samples would come twice and others never. Throws `failure` (bad_state) for a state without
// a plan.
std::uint64_t plan_fingerprint(const state& of);

// Converts a state to another number of lanes: distributes the rest of the epoch again, each sample
// to one lane, in an order that is a function of the state. From the next epoch on the order is
// that of the new number of lanes. `from` must hold the lanes of all ranks: see merged().
// `records`: the plan's, lane_plan::records. Pure. Throws `failure` (bad_state) if `from` lacks
// lanes, if a lane has given samples of a later epoch than others are in, or counted such as
// failed, if it has samples to pass over (skipping()), and if lanes keep records that are not in
// `records` or cannot be redistributed, as those of a mix and of windows.
state redealt(const state& from, std::int64_t lanes, std::span<const lane_dealer> records);

}  // namespace millrace
