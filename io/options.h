#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "engine/memory.h"
#include "engine/result.h"
#include "io/cache/options.h"
#include "io/http/options.h"
#include "io/names/rewrites.h"

namespace millrace {

// Whether files are read past the page cache (docs/decisions.md, 16).
enum class direct_reads {
  automatic,  // what neither is in the page cache nor will stay there
  always,     // where the file system can
  never,
};

// Options of reading. Every field but the last two is also a MILLRACE_ variable.
struct source_options {
  std::size_t chunk_bytes = 2_MiB;  // one read, one buffer
  int read_ahead = 8;               // chunks ready or under way beyond the one in use
  int read_depth = 0;               // chunks under way on one device; 0: by measurement
  direct_reads direct = direct_reads::automatic;
  bool drop_cache = false;
  int spindles = 0;                   // 0: as found; else the files are on rotational disks
  std::optional<int> serialize = {};  // extents at once through a gate; 0: no gate; unset: as found
  std::size_t extent_bytes = 0;       // of one turn at a gate; 0: by measurement
  std::string gate_folder = {};       // empty: /run/lock, /dev/shm or /tmp
  std::chrono::milliseconds gate_patience{5'000};
  std::chrono::milliseconds read_timeout{60'000};
  http_options http = {};
  bool allow_pipe = false;
  cache_options cache = {};
  rewrite_rules rewrites = {};  // of URLs, before they are opened
  int max_expansion = 200;      // times that a compressed shard may grow
  // The size of the data that the run reads repeatedly. 0: unknown, or read once.
  std::uint64_t working_set_bytes = 0;
  // Many shards are opened together and the first bytes of each are needed soon, so the first turns
  // are short.
  bool quick_start = false;

  static const option_list<source_options>& variables();
};

}  // namespace millrace
