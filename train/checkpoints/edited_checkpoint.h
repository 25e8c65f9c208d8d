#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/shards/edited_state.h"
#include "train/checkpoints/checkpoint_files.h"

namespace millrace {

// Edits of a checkpoint's position in its data, as moved_to_epoch() and skipping() make them of a
// state. Weights, step, samples trained on, and validation remain. `files` are of
// read_checkpoint(path); the results are for write_checkpoint(). Pure. All throw `failure`:
// integrity, and what those functions throw, located at the checkpoint.

// A checkpoint with the states of all ranks.
struct whole_checkpoint {
  checkpoint_record record;     // without a state
  std::vector<state> of_ranks;  // by rank
};
whole_checkpoint whole_of(const checkpoint_files& files, const std::string& path);

// The same run at the beginning of an epoch.
checkpoint_files moved_to_epoch(const checkpoint_files& files, const std::string& path,
                                std::int64_t epoch);

// The same run, which passes over the next samples of its epoch, over all ranks.
struct skipping_checkpoint {
  checkpoint_files files;
  // Counts as many batches of the epoch as have those samples, rounded down, so that the schedule
  // of the epoch continues after them; no more than a whole epoch is known to have.
  checkpoint_record record;
  skipping_states passed;
};
skipping_checkpoint skipping(const checkpoint_files& files, const std::string& path,
                             std::int64_t samples);

}  // namespace millrace
