#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "tools/jobs/job_progress.h"

namespace millrace {

class engine;

// Options of create_index().
struct index_options {
  std::string name = {};                 // of the dataset; empty: none
  std::optional<std::string> info = {};  // a description
  std::optional<std::string> base = {};  // base of relative URLs
  bool offsets = false;                  // also writes the offset of each sample
  bool md5 = true;                       // sizes and digests: reads every byte
  // Writes URLs unchanged: with their credentials, and relative ones not from the index's folder.
  bool urls_as_given = false;
  // Local files that the index must not replace, in addition to the shards.
  std::vector<std::string> inputs = {};
  // Called with the URL of each shard when it has been read, in the order of the list, on the
  // thread that called create_index(); may be null. What it throws ends the call.
  std::function<void(const std::string& url)> read = nullptr;
  job_progress* progress = nullptr;  // may be null
  std::stop_token stop = {};         // ends the call: no index is written
};

// The result of create_index().
struct index_report {
  std::uint64_t shards = 0;     // in the index
  std::uint64_t samples = 0;    // in these shards
  std::uint64_t bytes = 0;      // of the shards, where it is known
  std::string offsets;          // the path of the file of offsets; empty: none was written
  std::string removed_offsets;  // that of the index that was there before; empty: none
  bool has_left_out = false;    // URLs had users, passwords, or unknown parameters
  bool interrupted = false;     // by `stop`
};

// Reads shards and writes an index of them to `path`: wids v1 JSON, in the order of the URLs, and
// with `offsets` a file of offsets next to it (i.json -> i.offsets). URLs are written without what
// authorises requests, and relative ones from the index's folder. Both files appear when they are
// complete (engine/files/written_file.h), and an index that is there is replaced. Blocks. Not on a
// thread of the engine. read_index() reads the result.
//
// Throws `failure`: the first problem of a shard (verify_shards() lists all of them); usage if
// there are no shards, if `path` is one of them or a file of another kind, if another process is
// writing it, if a name is not UTF-8, and for `pipe:` URLs, which might hold secrets, unless
// `urls_as_given`; and what writing a file throws.
index_report create_index(engine& eng, const std::vector<std::string>& urls,
                          const std::string& path, const index_options& options = {});

}  // namespace millrace
