#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pipeline/state/state.h"
#include "train/checkpoints/arguments.h"

namespace millrace {

// The contents of a checkpoint other than the weights. A checkpoint is a folder DIR/step-NNNNNNNNNN
// with model.safetensors, optimizer.safetensors, for some runs ema.safetensors, data-rankR.json for
// each rank, and train.json, which holds the rest and the sizes and CRC-32Cs of the others. It
// appears whole or not at all.
struct checkpoint_record {
  std::int64_t step = 0;            // steps taken
  std::int64_t epoch = 0;           // in which the next step is
  std::int64_t batch_in_epoch = 0;  // batches of `epoch` already trained on
  std::int64_t epoch_batches = 0;   // of the last whole epoch; 0: none yet
  // An upper bound on `epoch_batches`, which is inexact after a change of batch size; not stored.
  std::int64_t epoch_batches_most = 0;
  std::int64_t samples = 0;  // trained on by each rank, on average
  int batch_size = 0;        // of each rank; 0: unknown
  int world_size = 1;        // ranks; of those that share a part of the data, one
  std::string run = {};      // the same for all checkpoints of a run, however often it is resumed
  arguments said = {};       // the command line of the run that saved it
  // The names of its shards without secrets, in their order; empty: not recorded.
  std::vector<std::string> shards = {};
  // The sorted names of its class folders; empty for shards.
  std::vector<std::string> classes = {};
  // The validation_fingerprint() of the validation after this step; empty: none, or by an older
  // version, which did not record it.
  std::string validated = {};
  state data = {};  // this rank's
};

// The file of a checkpoint with everything but weights and states.
inline constexpr const char* meta_name = "train.json";
// The file with the weights.
inline constexpr const char* model_name = "model.safetensors";
// The file with the state of the optimizer, such as its momentum.
inline constexpr const char* optimizer_name = "optimizer.safetensors";
// The file with the average of the weights, in checkpoints of a run that has one.
inline constexpr const char* ema_name = "ema.safetensors";
// The file with the names of the shards, one a line.
inline constexpr const char* shards_name = "shards.txt";
// The file with the result of validation after a checkpoint's step.
inline constexpr const char* validation_name = "validation.json";
// Its key for the fingerprint of the shards.
inline constexpr const char* validated_key = "val_shards_fingerprint";

// The files of a checkpoint by their names.
using checkpoint_files = std::map<std::string, std::string>;

// `weights`: the files of the model and its optimizer. `data`: the saved states of all ranks as
// text, in rank order.
checkpoint_files files_of(const checkpoint_record& c, checkpoint_files weights,
                          const std::vector<std::string>& data);

// Those of `names` that a run wrote into a checkpoint's folder: the usual files of a checkpoint,
// whole or partial, and those that its train.json (`meta`; empty: none) lists.
std::vector<std::string> own_files(const std::vector<std::string>& names, const std::string& meta);

// Whether a folder holds the files of a checkpoint, sound or not: an index may be named train.json.
bool is_checkpoint(const std::string& folder);

// Reads a folder's files and checks them against train.json. Throws `failure`: not_found if there
// is not such a folder, usage if it is a folder of checkpoints, integrity, naming the file, if one
// is missing or damaged.
checkpoint_files read_checkpoint(const std::string& path);

// Bytes of the largest train.json and validation.json, which list ranks and not tensors.
inline constexpr std::size_t most_of_a_list = 64UL << 20;
// Reads the content of a checkpoint's file of that name; nullopt: there is none. Throws `failure`:
// too_large beyond `most` bytes.
using checkpoint_reader =
    std::function<std::optional<std::string>(const std::string& name, std::size_t most)>;
// Reads the files of the checkpoint `path`, wherever that is, by `read`, and checks them as
// read_checkpoint() does.
checkpoint_files read_checkpoint_by(const checkpoint_reader& read, const std::string& path);

// The number of lanes a state was saved with; 0: not recorded.
std::int64_t lanes_of(const state& saved);

// What the files say, unchanged: the record without a state. `path` names the checkpoint in errors.
// Throws `failure` (integrity).
checkpoint_record record_as_saved(const checkpoint_files& files, const std::string& path);
// The state that a rank saved. `state_bytes`: the memory that it may take; 0: the limit of
// state::from_json(). Throws `failure`: integrity, bad_state, and no_memory beyond that limit.
state state_in(const checkpoint_files& files, const std::string& path, int rank,
               std::size_t state_bytes);

// A rank's view of the files. If they were saved by another number of ranks, or with a number of
// lanes other than `lanes`, their states are merged into one, of which each rank takes its lanes,
// and batches are recounted for `world_size` and `batch_size`. `path` and `state_bytes` as
// above, of each rank. Throws `failure` as those do.
checkpoint_record record_in(const checkpoint_files& files, const std::string& path, int rank,
                            int world_size, std::int64_t lanes, int batch_size,
                            std::size_t state_bytes);
// One of the files. Throws `failure` (integrity) if the checkpoint lacks it.
const std::string& file_in(const checkpoint_files& files, const std::string& name,
                           const std::string& path);

}  // namespace millrace
