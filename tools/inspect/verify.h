#pragma once

#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "pipeline/shards/shard_index.h"
#include "tools/jobs/job_progress.h"

namespace millrace {

class engine;

// Options of verify_shards().
struct verify_options {
  // Compares counts, sizes, MD5s, offsets and names with this index; null: reads no MD5s. Must
  // outlive the call.
  const shard_index* index = nullptr;
  // The shards are all that exist, for example those of a folder: each shard of the index that is
  // not among them is a problem.
  bool are_all = false;
  bool images = false;  // decodes every image, in the CPU pool
  // Extensions that every sample must have, in lower case and without the first dot, each with its
  // alternatives: {{"jpg", "png"}, {"cls"}}.
  std::vector<std::vector<std::string>> required = {};
  // Called for each problem, when it is found, on the thread that called verify_shards(); may be
  // null. What it throws ends the call.
  std::function<void(const error&)> found = nullptr;
  job_progress* progress = nullptr;  // may be null
  std::stop_token stop = {};         // ends the call, with a report of what was verified so far
};

// The result of verify_shards().
struct verify_report {
  std::uint64_t problems = 0;           // found, those counted together included
  std::uint64_t shards = 0;             // verified
  std::uint64_t samples = 0;            // of these shards
  std::uint64_t payload_bytes = 0;      // of the samples' files
  std::uint64_t without_extension = 0;  // files, which belong to no sample
  std::uint64_t meta_files = 0;         // named __x__ or below such a folder: likewise
  std::uint64_t not_files = 0;          // links and devices
  std::uint64_t unreadable = 0;         // shards that cannot be reached or read
  std::uint64_t missing = 0;            // shards of the index that were not verified
  bool interrupted = false;             // by `stop`

  // All shards were verified, and have no problem.
  bool is_well() const { return problems == 0 && !interrupted; }
};

// Reads shards and looks for what is wrong with them: damage, keys that come twice (in one shard or
// in several), samples that lack a field, images that cannot be decoded, and differences from an
// index. Reads several shards at once, and blocks until all are read. At most 1000 problems of a
// shard are reported one by one, and then the number of further ones. Keys are compared in half of
// the engine's budget; a problem (too_large) says where that was not enough. Throws `failure`:
// usage if there are no shards, what engine::run() throws, and what ends a run, such as no_memory;
// that a shard cannot be read is a problem, and not thrown. Not on a thread of the engine.
verify_report verify_shards(engine& eng, const std::vector<std::string>& urls,
                            const verify_options& options = {});

}  // namespace millrace
