#pragma once

#include <cstdint>
#include <span>

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

}  // namespace millrace
