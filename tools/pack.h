#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "tools/pack_files.h"

namespace millrace {

class engine;

struct pack_options {
  // A folder whose folders are classes, numbered in the order of their names; or "@FILE", with
  // lines PATH or PATH<tab>CLASS.
  std::string from;
  std::string pattern;                       // of the shards' names: "train-%06d.tar"
  std::uint64_t most_bytes = 3'000'000'000;  // of payload, after which a shard is ended
  std::int64_t most_count = 100'000;         // of samples, likewise
  std::optional<std::uint64_t> shuffle;      // seed
  // Of JPEGs: the shorter side in pixels; 0, smaller ones, and files of more than 256 MiB: bytes as
  // they are.
  int resize = 0;
  int quality = 90;  // of those that are scaled
  // JPEGs of up to 256 MiB get a restart marker every so many MCUs
  // (pipeline/images/jpeg_rewrite.h); 0: none.
  int restart = 0;
  int part = 1;  // of `parts`: which shards to write
  int parts = 1;
  bool compat = false;                         // keys 00000000, 00000001, ... instead of paths
  int threads = 0;                             // shards written at once; 0: one
  same_name of_one_name = same_name::unknown;  // images
  bool overwrite = false;
  // Called once with the total, and then with the payload packed so far. For progress; may be null.
  std::function<void(std::uint64_t shards, std::uint64_t payload_bytes)> planned = nullptr;
  std::atomic<std::uint64_t>* packed = nullptr;
};

struct pack_report {
  std::uint64_t samples = 0;
  std::uint64_t classes = 0;
  std::uint64_t shards = 0;
  std::uint64_t kept = 0;          // of them: there already, from a run that was stopped
  std::uint64_t written = 0;       // shards
  std::uint64_t bytes = 0;         // of the shards written
  std::uint64_t scaled = 0;        // images made smaller
  std::uint64_t not_scaled = 0;    // images that cannot be decoded: packed as they are
  std::uint64_t bytes_before = 0;  // of the images made smaller
  std::uint64_t bytes_after = 0;
  std::uint64_t rewritten = 0;           // images with restart markers
  std::uint64_t not_rewritten = 0;       // images that cannot have them: packed as they are
  std::uint64_t other_images = 0;        // that are no JPEGs: packed as they are
  std::vector<std::string> undecodable;  // paths, of `not_scaled`: the first ten by name
  double seconds = 0;
  double cpu_seconds = 0;
  bool interrupted = false;
  std::string classes_file;           // names of the classes, a line for each label; empty: none
  std::vector<std::string> left_out;  // "3 hidden files"
};

// Packs files into shards. Files of one folder that differ in what follows their last dot are one
// sample; its class is the field cls, unless it has one. The output is a function of the files and
// options, byte by byte, whatever the number of threads or parts; a shard appears under its name
// when it is whole, so a run that was stopped is resumed by the same call. A line for each shard
// written goes to `say` or, with `compat`, one in the form of WebDataset's ShardWriter ("# writing
// NAME SAMPLES GB TOTAL") as it is begun. Throws `failure`.
pack_report pack_shards(const pack_options& options,
                        const std::function<void(const std::string&)>& say,
                        const std::atomic<bool>& interrupted);

struct repack_options {
  std::vector<std::string> urls;                   // one shard is made of each
  std::string pattern;                             // of their names
  int restart = 0;                                 // of JPEGs, as above
  std::atomic<std::uint64_t>* complete = nullptr;  // shards; for progress, may be null
  std::stop_token stop = {};                       // ends it also while it waits for a source
  bool overwrite = false;
};

// Writes shards again, sample by sample, with their JPEGs rewritten: a plain shard for each, with
// the same samples in the same order. `samples` and `bytes` of the report are those written. A run
// that was stopped is resumed by the same call: shards that are whole stay. Inputs
// that are files are known again by size and time, objects on servers by their URLs. Samples are
// what readers take them to be: files without an extension are left out, and reported. Throws
// `failure`.
pack_report repack_shards(engine& eng, const repack_options& options,
                          const std::function<void(const std::string&)>& say,
                          const std::atomic<bool>& interrupted);

}  // namespace millrace
