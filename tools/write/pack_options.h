#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "tools/jobs/job_progress.h"

namespace millrace {

// What a.png and a.seg.png are if there is an a.jpg.
enum class same_name : std::uint8_t {
  unknown,  // an error
  fields,   // fields of that sample, as readers of tars take them
  // Samples of their own, with the keys a_png and a_seg; a.txt, which is not an image, is a field
  // nevertheless.
  samples,
};

// Options of pack_shards().
struct pack_options {
  // A folder whose folders are classes, numbered in the order of their names; or "@FILE", with
  // lines PATH or PATH<tab>CLASS.
  std::string from;
  // The names of the shards: "out/train-%06d.tar", or a brace range. The folder must exist.
  std::string pattern;
  std::uint64_t most_bytes = 3'000'000'000;   // payload after which a shard ends, at least 1
  std::int64_t most_count = 100'000;          // samples after which a shard ends, at least 1
  std::optional<std::uint64_t> shuffle = {};  // the seed by which samples are mixed; or not
  // JPEGs are scaled so that their shorter side has this many pixels; 0: they stay. Smaller ones
  // and files of more than 256 MiB stay in any case.
  int resize = 0;
  int quality = 90;  // of JPEGs that are scaled, 1 to 100
  // JPEGs of up to 256 MiB get a restart marker after this many MCUs, losslessly, so that crops
  // decode faster; 0: none.
  int restart = 0;
  int part = 1;         // of `parts`: writes each parts-th shard, from the part-th on
  int parts = 1;        // runs, on any hosts, that share the work: see `part`
  bool compat = false;  // keys 00000000, 00000001, ... instead of paths
  static constexpr int most_threads = 1024;  // that `threads` may be
  int threads = 0;  // shards written at once, at most `most_threads`; 0: one
  same_name of_one_name = same_name::unknown;  // for images
  bool overwrite = false;                      // replaces shards, and cannot be resumed
  // Called once, with the number of shards and the bytes of their payload, before the first is
  // written; may be null.
  std::function<void(std::uint64_t shards, std::uint64_t payload_bytes)> planned = nullptr;
  // Called with a line for each shard that is complete or, with `compat`, with one in the form of
  // WebDataset's ShardWriter ("# writing NAME SAMPLES GB TOTAL") for each that is begun; one call
  // at a time, on any of the threads; may be null. If it throws, the call ends with that, as a
  // `failure`.
  std::function<void(const std::string&)> say = nullptr;
  job_progress* progress = nullptr;  // its bytes are payload; may be null
  std::stop_token stop = {};         // ends the call; the same call resumes
};

}  // namespace millrace
