#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

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
  int resize = 0;    // of JPEGs: the shorter side in pixels; 0, and smaller ones: bytes as they are
  int quality = 90;  // of those that are scaled
  int restart =
      0;         // JPEGs get a restart marker every so many MCUs (pipeline/images/jpeg_rewrite.h)
  int part = 1;  // of `parts`: which shards to write
  int parts = 1;
  bool compat = false;  // keys 00000000, 00000001, ... instead of paths
  int threads = 0;      // shards written at once; 0: one
  bool overwrite = false;
};

struct pack_report {
  std::uint64_t samples = 0;
  std::uint64_t classes = 0;
  std::uint64_t shards = 0;
  std::uint64_t kept = 0;          // of them: there already, from a run that was stopped
  std::uint64_t bytes = 0;         // of the shards written
  std::uint64_t scaled = 0;        // images made smaller
  std::uint64_t not_scaled = 0;    // images that cannot be decoded: packed as they are
  std::uint64_t bytes_before = 0;  // of the images made smaller
  std::uint64_t bytes_after = 0;
  std::uint64_t rewritten = 0;      // images with restart markers
  std::uint64_t not_rewritten = 0;  // images that cannot have them: packed as they are
  double seconds = 0;
  double cpu_seconds = 0;
  bool interrupted = false;
};

// Packs files into shards. Files of one folder that differ in what follows their last dot are one
// sample; its class is the field cls, unless it has one. What comes out is a function of the files
// and options, byte by byte, whatever the number of threads or parts; a shard appears under its
// name when it is whole, so a run that was stopped goes on where it was. Lines in the form of
// WebDataset's ShardWriter ("# writing NAME SAMPLES GB TOTAL") go to `say`. Throws `failure`.
pack_report pack_shards(const pack_options& options,
                        const std::function<void(const std::string&)>& say,
                        const std::atomic<bool>& interrupted);

struct repack_options {
  std::vector<std::string> urls;  // one shard is made of each
  std::string pattern;            // of their names
  int restart = 0;                // of JPEGs, as above
  bool overwrite = false;
};

// Writes shards again, sample by sample, with their JPEGs rewritten: a plain shard for each, with
// the same samples in the same order. `bytes` of the report are those written. Samples are what
// readers take them to be: files without an extension are left out, and told of. Throws `failure`;
// the shards that are whole stay.
pack_report repack_shards(engine& eng, const repack_options& options,
                          const std::function<void(const std::string&)>& say,
                          const std::atomic<bool>& interrupted);

}  // namespace millrace
