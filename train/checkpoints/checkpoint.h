#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/checkpoints/checkpoint_choice.h"
#include "train/checkpoints/checkpoint_files.h"
#include "train/models/safetensors.h"
#include "train/ranks/distributed.h"

namespace millrace {

// The state from which a run is resumed. Only rank 0 writes and reads it: the other ranks need not
// see the folder.
struct checkpoint : checkpoint_record {
  tensor_dict model = {};      // weights_of() the model
  tensor_dict optimizer = {};  // such as its momentum, by the names of the parameters
  tensor_dict ema = {};        // the average of the weights, as `model`; empty: there is none
};

// The parameters of record_in() that describe the reading run.
struct read_terms {
  std::int64_t lanes = 0;       // of all ranks
  int batch_size = 0;           // of each rank
  std::size_t state_bytes = 0;  // memory that a rank's state may take
  job_place place = {};         // of this rank's part of the data
};

// A rank's view of a checkpoint's files: see record_in().
checkpoint checkpoint_from(const checkpoint_files& files, const std::string& path,
                           const read_terms& terms);

// Throws `failure` (bad_state) if weights or the optimizer's tensors are not tensors, or not
// finite.
void check_sound(const chosen_checkpoint& c);

// The files of `c`, with the saved states of all parts of the data as text.
checkpoint_files files_to_save(const checkpoint& c, const std::vector<std::string>& states);

// The checkpoint that rank 0 chooses and reads, on every rank. Called by all ranks at the same
// point; throws `failure` on all or on none. `choose` is called on rank 0 and returns its path and
// files, or nullopt for none. For `terms` see record_in().
std::optional<std::pair<std::string, checkpoint>> load_checkpoint(
    const std::function<std::optional<chosen_checkpoint>()>& choose, process_group& group,
    const read_terms& terms);

}  // namespace millrace
