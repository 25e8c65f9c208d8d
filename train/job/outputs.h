#pragma once

#include "train/command_line/options.h"
#include "train/ranks/distributed.h"

namespace millrace {

// Checks what a run writes before it writes anything: that no two options name the same file or
// folder, that none is a part of a checkpoint, that files of other kinds or of other runs are not
// in the way, and that all can be written. Throws `failure`.
void check_outputs(const train_options& options, const job_place& place);

// Creates the folders that options name, except that of the checkpoints. Throws `failure`.
void make_output_folders(const train_options& options);

// Empties the list of skipped samples if --overwrite starts a new run. On all ranks, before the
// first of them reads. Throws `failure`.
void empty_replaced_list(const train_options& options);

}  // namespace millrace
