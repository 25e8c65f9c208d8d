#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pipeline/state/state.h"

namespace millrace {

// The same run at the beginning of an epoch of its data, from 0: stages hold nothing, and the
// counts of skipped samples are kept. `of` may be of one rank or of all. Pure. Throws `failure`
// (unsupported) if the state does not tell how that epoch begins: of a mix, of shards that are
// drawn with replacement, with epochs_of() or repeated(), or with a record of the program's own
// stages; bad_state for a state that makes no sense.
state moved_to_epoch(const state& of, std::int64_t epoch);

// Result of skipping().
struct skipping_states {
  std::vector<state> of_ranks;  // in the same order
  std::int64_t epoch = 0;       // of the samples to pass over
  std::int64_t samples = 0;     // them: fewer than wanted if the epoch is known to have no more
  bool to_the_end = false;      // of that epoch: it has no more as far as the states tell
};

// Makes the run pass over the next `samples` of its epoch, over all ranks: a resumed run reads but
// does not decode them, counts them as dropped, and gives what follows in the same order. They are
// those at the next positions of the lanes (docs/order.md), so any number of ranks passes over the
// same ones, if it has as many lanes; redealt() refuses another number until they are passed. If a
// lane or the epoch ends before, they are fewer. Of a state that passes over samples already, these
// are further ones. `of_ranks`: the states of all ranks, saved at the same step, or the one that
// merged() makes of them. Pure. Throws `failure` (bad_state) if they lack lanes.
skipping_states skipping(std::span<const state> of_ranks, std::int64_t samples);

}  // namespace millrace
