#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "engine/base/result.h"
#include "engine/base/units.h"
#include "io/cache/options.h"
#include "io/http/options.h"
#include "io/names/rewrites.h"

namespace millrace {

// Whether files are read past the page cache (docs/decisions.md, 16).
enum class direct_reads {
  automatic,  // for what neither is in the page cache nor would stay there
  always,     // if the file system can
  never,      // through the page cache
};

// Options of reading. Every field but the last two is also a MILLRACE_ variable.
struct source_options {
  std::size_t chunk_bytes = 2_MiB;  // of one read and its buffer
  // The most chunks ready or under way beyond the one in use, for each open shard. A file that is
  // read without a gate has two until its consumer has to wait.
  int read_ahead = 8;
  int read_depth = 0;  // reads under way at once on one device; 0: by measurement
  direct_reads direct = direct_reads::automatic;  // past the page cache
  bool drop_cache = false;  // drop pages from the page cache once they have been read
  int spindles = 0;         // disks that one large read keeps busy; 0: as found. Set: disks rotate
  std::optional<int> serialize = {};  // extents at once through a gate; 0: no gate; unset: as found
  std::size_t extent_bytes = 0;       // of one turn at a gate; 0: by measurement
  std::string gate_folder = {};       // of the gates' locks; empty: /run/lock, /dev/shm or /tmp
  std::chrono::milliseconds gate_patience{5'000};  // for a holder without a sign of life
  std::chrono::milliseconds read_timeout{60'000};  // of one read of a file
  http_options http = {};                          // of http: and https: URLs, and object stores
  bool allow_pipe = false;      // whether pipe: URLs may run commands of the shell
  cache_options cache = {};     // of fetched objects
  rewrite_rules rewrites = {};  // of prefixes of URLs, before they are opened
  int max_expansion = 200;      // times that a compressed shard may grow
  // The size of the data that the run reads repeatedly. 0: unknown, or read once.
  std::uint64_t working_set_bytes = 0;
  // Makes the first turns at a gate short: many shards are opened together, and the first bytes of
  // each are needed soon.
  bool quick_start = false;

  static const option_list<source_options>& variables();
};

}  // namespace millrace
