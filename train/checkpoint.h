#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "pipeline/state.h"
#include "train/distributed.h"

namespace millrace {

using tensor_dict = std::map<std::string, at::Tensor>;

// What a run goes on from. A checkpoint is a folder DIR/step-NNNNNNNNNN with model.pt and
// optimizer.pt (dicts of tensors: torch.load reads them), train.json, and data-rankR.json for each
// rank. It appears whole or not at all.
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

// A dict of tensors as torch.save writes it. Throws `failure`.
tensor_dict load_tensors(const std::string& file);
void save_tensors(const std::string& file, const tensor_dict& tensors);

}  // namespace millrace
