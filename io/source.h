#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/async.h"
#include "engine/bytes.h"
#include "engine/memory.h"
#include "engine/result.h"
#include "engine/runtime.h"
#include "engine/scope.h"
#include "engine/settings.h"
#include "engine/stats.h"
#include "io/cache/cache_folder.h"
#include "io/http/options.h"
#include "io/url.h"

namespace millrace {

// The bytes of one object, or of a range of it, in order. One I/O thread, one call at a time.
// Destroying it cancels reads under way.
class byte_source {
 public:
  virtual ~byte_source() = default;
  // The next bytes; an empty slice at the end, and only when all has been given:
  // a cut or a shrunk object is an error. After an error the source must not be used.
  virtual awaitable<result<bytes>> read() = 0;
};

// Whether files are read past the page cache (docs/decisions.md, 16).
enum class direct_reads {
  automatic,  // what neither is in the page cache nor will stay there
  always,     // where the file system can
  never,
};

// Rules that replace a prefix of URLs: the prefix and its replacement.
using rewrite_rules = std::vector<std::pair<std::string, std::string>>;

// Options of reading. Every field but the last two is also a MILLRACE_ variable.
struct source_options {
  std::size_t chunk_bytes = 2_MiB;  // one read, one buffer
  int read_ahead = 8;               // chunks ready or under way beyond the one in use
  int read_depth = 0;               // chunks under way on one device; 0: by measurement
  direct_reads direct = direct_reads::automatic;
  bool drop_cache = false;
  int spindles = 0;              // 0: as found; else the files are on rotational disks
  std::optional<int> serialize;  // extents at once through a gate; 0: no gate; unset: as found
  std::size_t extent_bytes = 0;  // of one turn at a gate; 0: by measurement
  std::string gate_folder;       // empty: /run/lock, /dev/shm or /tmp
  std::chrono::milliseconds gate_patience{5'000};
  std::chrono::milliseconds read_timeout{60'000};
  http_options http;
  bool allow_pipe = false;
  cache_options cache;
  rewrite_rules rewrites;   // of URLs, before they are opened
  int max_expansion = 200;  // times that a compressed shard may grow
  // The size of the data that the run reads repeatedly. 0: unknown, or read once.
  std::uint64_t working_set_bytes = 0;
  // Many shards are opened together and the first bytes of each are needed soon, so the first turns
  // are short.
  bool quick_start = false;

  // Fails with bad_setting for a text that is not what its variable asks for.
  static result<source_options> from(const settings& s);
};

// The memory that one open source needs, and the most that it can use.
struct source_memory {
  std::size_t least = 0;
  std::size_t most = 0;
};
// What suffices for any one of `urls`: the largest over their kinds (files, objects on servers,
// others; through the cache or not). Looks at the device that the first file of a kind is on; other
// sources need the same wherever they are. Blocks for as long as a stat() of those files takes.
source_memory memory_for(const source_options& options, std::span<const std::string> urls);
// The part of the device's rate that the budget costs, for the device that a file is on
// (io/disk.h).
std::optional<std::string> rate_lost(const source_options& options, const std::string& url,
                                     std::size_t share_bytes, std::size_t shards,
                                     std::size_t budget_bytes);
// Estimates the bytes that a run reads in an epoch, from the size of the first file.
std::uint64_t working_set_of(const std::vector<std::string>& urls);

// Counted by sources; one I/O thread only.
struct source_counters {
  std::uint64_t bytes = 0;
  std::uint64_t requests = 0;
  std::uint64_t retries = 0;
  std::uint64_t resumed = 0;        // of retries: in the middle of a transfer
  std::uint64_t stalls = 0;         // of retries: a server that gave nothing in time
  std::uint64_t hedges = 0;         // parts that were asked for a second time
  std::uint64_t hedges_won = 0;     // of hedges: the second was faster
  std::uint64_t wasted_bytes = 0;   // received and not used
  std::uint64_t direct_bytes = 0;   // of bytes: past the page cache
  std::uint64_t seeks_avoided = 0;  // at gates; see docs/decisions.md, 15
  std::uint64_t cache_hits = 0;     // objects read from the cache
  std::uint64_t cache_misses = 0;   // objects fetched into it
  std::uint64_t cache_healed = 0;   // objects fetched again because their copy was damaged
  double gate_wait_s = 0;           // of all readers, added up
  double memory_wait_s = 0;         // likewise
  int most_depth = 0;               // chunks under way at once on one device
  double first_byte_wait_s = 0;     // likewise: from requests to the heads of their answers
  latency_histogram reads;          // of chunks
  latency_histogram first_bytes;    // of answers

  void add(const source_counters& other);
};

// The surroundings of a source. The referents outlive the source and its tasks.
struct source_context {
  runtime& threads;
  io_thread& io;
  scope& tasks;                          // where read-ahead runs
  std::shared_ptr<memory_share> memory;  // of this source alone
  const source_options& options;
  source_counters& counters;
};

// Opens a range of `where`, which is what `text` says; of a range that goes on behind the object's
// end, what is there. Called on the I/O thread of the registry, once for each time that an object
// is opened; lives as long as the registry, and may be copied.
using source_factory = std::function<awaitable<result<std::unique_ptr<byte_source>>>(
    source_context context, std::string text, url where, byte_range range)>;

// Scheme -> factory. Passed in wherever sources are opened; there is no global one.
class source_registry {
 public:
  // Takes the place of what was there for the scheme. An exception of the factory or its sources
  // becomes an error that names the URL; returning no source is an error as well (usage).
  void add(std::string scheme, source_factory factory);
  // Fails with `unsupported` for a scheme that nobody added.
  awaitable<result<std::unique_ptr<byte_source>>> open(source_context context, std::string text,
                                                       byte_range range = {}) const;

 private:
  std::map<std::string, source_factory, std::less<>> factories_;
};

// file:, "-" and http: for sources on the I/O thread `io`, with its own devices, open files and
// kept-alive connections.
source_registry standard_sources(io_thread& io, const source_options& options);

}  // namespace millrace
