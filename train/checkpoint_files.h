#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "pipeline/state.h"
#include "train/arguments.h"

namespace millrace {

// The contents of a checkpoint other than the weights. A checkpoint is a folder DIR/step-NNNNNNNNNN
// with model.safetensors, optimizer.safetensors, data-rankR.json for each rank, and train.json,
// which holds the rest and the sizes and CRC-32Cs of the others. It appears whole or not at all.
struct checkpoint_record {
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  std::int64_t batch_in_epoch = 0;  // batches of `epoch` already trained on
  std::int64_t epoch_batches = 0;   // of the last whole epoch; 0: none yet
  // They may be as many where they were counted in batches of another size; not a part of the
  // files.
  std::int64_t epoch_batches_most = 0;
  std::int64_t samples = 0;  // trained on by each rank
  int batch_size = 0;        // of each rank; 0: unknown
  int world_size = 1;
  std::string run;  // the same for all checkpoints of a run, however often it was resumed
  arguments said;   // the command line that it was saved under
  // Names of the class folders that its samples are of, sorted; none where they are of shards.
  std::vector<std::string> classes;
  // Of which shards validation after this step was done (validation_fingerprint()); empty: of none,
  // or by an older version, which did not say.
  std::string validated;
  state data;  // this rank's
};

inline constexpr const char* meta_name = "train.json";
inline constexpr const char* model_name = "model.safetensors";
inline constexpr const char* momentum_name = "optimizer.safetensors";
// The file with the result of validation after a checkpoint's step.
inline constexpr const char* validation_name = "validation.json";
// Its key that says of which shards.
inline constexpr const char* validated_key = "val_shards_fingerprint";

// The files of a checkpoint by their names.
using checkpoint_files = std::map<std::string, std::string>;

// `weights`: the files of the model and of its optimizer. `data`: the saved states of all ranks, as
// text, in their order.
checkpoint_files files_of(const checkpoint_record& c, checkpoint_files weights,
                          const std::vector<std::string>& data);

// The files that a run wrote into a checkpoint's folder, of those whose names are given: the ones
// of a checkpoint, whole or half-written, and those that its train.json (empty: none) lists.
std::vector<std::string> own_files(const std::vector<std::string>& names, const std::string& meta);

// Reads a folder's files and checks them against train.json. Throws `failure`: not_found where
// there is no such folder, usage where it is a folder of checkpoints, integrity where a file is
// missing or damaged, naming it.
checkpoint_files read_checkpoint(const std::string& path);

// How many lanes a state was saved with; 0: it does not say.
std::int64_t lanes_of(const state& saved);

// A rank's view of the files. Where they were saved by another number of ranks, their states as
// one, of which each rank takes its lanes; batches are counted in those of `world_size` and
// `batch_size`; so they are where they were saved with another number of lanes than `lanes`.
// `path` names the checkpoint in errors. `state_bytes`: what each rank's state may take in memory;
// 0: as state::from_json() has it. Throws `failure`: integrity, bad_state, and no_memory for a
// larger one.
checkpoint_record record_in(const checkpoint_files& files, const std::string& path, int rank,
                            int world_size, std::int64_t lanes, int batch_size,
                            std::size_t state_bytes);
// One of the files. Throws `failure` (integrity) where the checkpoint lacks it.
const std::string& file_in(const checkpoint_files& files, const std::string& name,
                           const std::string& path);

}  // namespace millrace
