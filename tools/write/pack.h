#pragma once

#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "tools/jobs/job_progress.h"
#include "tools/write/pack_options.h"

namespace millrace {

class engine;

// The result of pack_shards() and repack_shards().
struct pack_report {
  std::uint64_t samples = 0;             // in the shards of this part, those kept included
  std::uint64_t classes = 0;             // different ones
  std::uint64_t shards = 0;              // of this part, those kept included
  std::uint64_t kept = 0;                // of these shards: left by a run that was stopped
  std::uint64_t written = 0;             // shards
  std::uint64_t bytes = 0;               // of the shards written
  std::uint64_t scaled = 0;              // images made smaller
  std::uint64_t not_scaled = 0;          // images that cannot be decoded: packed unchanged
  std::uint64_t bytes_before = 0;        // of the images made smaller
  std::uint64_t bytes_after = 0;         // of the same, scaled
  std::uint64_t rewritten = 0;           // images with restart markers
  std::uint64_t not_rewritten = 0;       // images that cannot have them: packed unchanged
  std::uint64_t other_images = 0;        // other than JPEG: packed unchanged
  std::vector<std::string> undecodable;  // paths, of `not_scaled`: the first ten by name
  double seconds = 0;                    // that the call took
  double cpu_seconds = 0;                // of the process meanwhile
  bool interrupted = false;              // by `stop`
  std::string classes_file;              // names of the classes, a line for each label; empty: none
  std::vector<std::string> left_out;     // what was not packed, in words: "3 hidden files"
};

// Packs files into shards. The files of a folder whose names differ only after a dot are the fields
// of a sample; its class is the field cls, unless it has one. The shards are the same, byte by
// byte, for the same files and options, whatever the number of threads or parts. A shard appears
// under its name when it is complete, and hidden files next to the shards record what was written,
// so that the same call resumes a run that was stopped. Blocks. Throws `failure`: usage for wrong
// options, for names that are ambiguous, and if shards of another run are there (unless
// `overwrite`) or another run is writing them; no_samples if there are no files; changed if a file
// changes meanwhile; and what reading or writing a file throws.
pack_report pack_shards(const pack_options& options);

// Options of repack_shards().
struct repack_options {
  std::vector<std::string> urls;  // a shard is made of each
  // The names of the new shards: "fast/train-%06d.tar", or a brace range. The folder must exist.
  std::string pattern;
  // JPEGs get a restart marker after this many MCUs, as in pack_options; 0: they stay.
  int restart = 0;
  bool overwrite = false;  // replaces shards, and cannot be resumed
  // Called with a line for each shard that is complete, on the thread that called repack_shards();
  // may be null.
  std::function<void(const std::string&)> say = nullptr;
  job_progress* progress = nullptr;  // may be null
  std::stop_token stop = {};         // ends the call; the same call resumes
};

// Writes shards again, sample by sample, with their JPEGs rewritten: a plain shard for each, with
// the same samples in the same order. `samples` and `bytes` of the report are those written. The
// same call resumes a run that was stopped: shards that are complete stay. Inputs that are files
// are recognised by size and time, objects on servers by their URLs. Samples are what readers take
// them to be: files without an extension are left out, and reported. Blocks. Not on a thread of the
// engine. Throws `failure` as pack_shards() does, and for errors of reading.
pack_report repack_shards(engine& eng, const repack_options& options);

}  // namespace millrace
