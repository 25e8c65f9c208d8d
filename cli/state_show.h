#pragma once

#include <string>

#include "pipeline/state/state.h"
#include "train/checkpoints/checkpoint_files.h"

namespace millrace::cli {

// Prints where a saved state is, for people or as the object of --json. `whole`: of all ranks whose
// states there are. `of`: the checkpoint that it is from; nullptr: none. Throws `failure`
// (bad_state) for a state that makes no sense.
void show_state(const std::string& file, const state& whole, const checkpoint_record* of,
                bool json);

}  // namespace millrace::cli
