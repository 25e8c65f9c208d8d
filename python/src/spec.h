#pragma once

#include <millrace/millrace.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace millrace::python {

// The settings of a run in Python: the arguments of ImageLoader and samples(), checked by the
// engine's own functions when the run begins.
struct spec {
  // The source of the samples.
  std::vector<std::string>
      shards;  // specs of find_shards(); or one index, a URL that ends in .json
  int rank = 0;
  int world_size = 1;
  int lanes = 0;               // as shard_list_options::lanes
  std::uint64_t seed = 0;      // of everything
  std::string epoch;           // "exact", "equal", "equal_repeating" or "resample"
  bool shuffle_shards = true;  // permutes the list in each epoch
  std::int64_t first_epoch = 0;
  std::int64_t epoch_length = 0;              // images of this rank in an epoch; 0: the data's own
  std::size_t shuffle = 0;                    // samples held; 0: none
  std::optional<std::uint64_t> shuffle_seed;  // of those; none: `seed`
  std::string fields;                         // patterns of the fields to keep; empty: all
  bool resync = false;                        // as untar_options::resync
  // Companions of the shards, in order; and tables with their rules for missing rows, after them.
  std::vector<join_stage> joins;
  std::vector<std::pair<std::shared_ptr<const field_table>, missing_companion>> tables;
  error_policy errors = fail_on_error();
  // The engine.
  int threads = 0;           // that decode; 0: as needed
  std::size_t memory = 0;    // budget in bytes; 0: the engine's default
  std::string cache_folder;  // of fetched objects; empty: as the environment says
  bool allow_pipe = false;   // of `pipe:` URLs, in addition to the environment
  // Images.
  decode_options decode;
  bool decodes = false;  // of samples: their images, whole
  bool orient = true;    // turns those as EXIF demands
  int batch_size = 64;
  bool drop_last = false;
  int held = 2;      // as batch_options::held
  int prefetch = 2;  // batches kept ready
};

// By its name. Throws `failure` (usage) for others.
epoch_mode mode_of(const std::string& name);
augment_policy policy_of(const std::string& name);

// The engine's options: those of the environment, and what the spec says.
engine_options engine_of(const spec& of);

// The shards of a run.
struct found_shards {
  std::shared_ptr<const std::vector<std::string>> urls;
  std::shared_ptr<const shard_index> index;  // null: lengths are unknown
};
// Lists the shards, or reads their index. Waits. Throws `failure`.
found_shards find(engine& eng, const spec& of);

// The options of shards() for them.
shard_list_options list_of(const spec& of, const found_shards& found);
// The samples of a rank, with the spec's shuffle and fields.
lane_plan<sample> samples_of(const spec& of, const found_shards& found);

// Samples that this rank reads in an epoch, before any is skipped; -1: not known.
std::int64_t samples_in_epoch(const spec& of, const found_shards& found, std::int64_t epoch);

}  // namespace millrace::python
