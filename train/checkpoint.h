#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "pipeline/state.h"
#include "train/distributed.h"
#include "train/safetensors.h"

namespace millrace {

// What a run goes on from. A checkpoint is a folder DIR/step-NNNNNNNNNN with model.safetensors,
// optimizer.safetensors, train.json, and data-rankR.json for each rank. It appears whole or not at
// all.
struct checkpoint {
  tensor_dict model;
  tensor_dict momentum;
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  std::int64_t batch_in_epoch = 0;  // batches of `epoch` already trained on
  std::int64_t epoch_batches = 0;   // of the last whole epoch; 0: none yet
  std::int64_t samples = 0;         // trained on by this rank
  int world_size = 1;
  state data;  // this rank's
};

// Writes it; called by all ranks at the same step. Rank 0 writes the model and gives the folder its
// name when all ranks have written theirs; the two newest are kept. Throws `failure` (io_failed).
void save_checkpoint(const std::string& folder, const checkpoint& c, process_group& group);

// The newest whole checkpoint in `folder`; nullopt where there is none.
std::optional<std::string> newest_checkpoint(const std::string& folder);

// Reads rank `rank`'s view of it. Throws `failure`: not_found, bad_state.
checkpoint load_checkpoint(const std::string& path, const job_place& place);

}  // namespace millrace
