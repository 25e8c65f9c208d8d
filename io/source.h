#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/awaitable.h"
#include "engine/bytes.h"
#include "engine/memory.h"
#include "engine/result.h"
#include "engine/runtime.h"
#include "engine/scope.h"
#include "engine/stats.h"
#include "io/names/url.h"
#include "io/options.h"

namespace millrace {

// The bytes of one object, or of a range of it, in order. One I/O thread, one call at a time.
// Destroying it cancels reads under way. Derive from it to read from elsewhere:
// examples/own_source.cc.
class byte_source {
 public:
  virtual ~byte_source() = default;
  // The next bytes; an empty slice at the end, and only after everything: an object that was cut or
  // has shrunk is an error. After an error the source must not be used.
  virtual awaitable<result<bytes>> read() = 0;
};

// The memory that one open source needs, and the most that it can use, in bytes.
struct source_memory {
  std::size_t least = 0;  // without which it cannot be opened
  std::size_t most = 0;   // beyond which it gets no faster
};
// What sources count. One I/O thread only.
struct source_counters {
  std::uint64_t bytes = 0;          // read from files and servers
  std::uint64_t requests = 0;       // files opened, and requests sent
  std::uint64_t retries = 0;        // transfers resumed or retried
  std::uint64_t resumed = 0;        // part of retries: in the middle of a transfer
  std::uint64_t stalls = 0;         // part of retries: a server that gave nothing in time
  std::uint64_t hedges = 0;         // parts that were requested a second time
  std::uint64_t hedges_won = 0;     // part of hedges: the second request was faster
  std::uint64_t wasted_bytes = 0;   // received and not used
  std::uint64_t direct_bytes = 0;   // part of bytes: past the page cache
  std::uint64_t seeks_avoided = 0;  // at gates; see docs/decisions.md, 15
  std::uint64_t cache_hits = 0;     // objects read from the cache
  std::uint64_t cache_misses = 0;   // objects fetched into it
  std::uint64_t cache_healed = 0;   // objects fetched again because their copy was damaged
  double gate_wait_s = 0;           // seconds of all readers, summed
  double memory_wait_s = 0;         // seconds of all readers, summed
  int most_depth = 0;               // chunks under way at once on a device, at most; add() sums
  double first_byte_wait_s = 0;     // from requests to the heads of their responses, summed
  latency_histogram reads;          // durations of reads of a chunk
  latency_histogram first_bytes;    // durations from request to response

  // Adds the figures of another one.
  void add(const source_counters& other);
};

// The version of an object that is opened several times. The first source that gets an empty one
// fills it, at its first read() at the latest; later sources fail with `changed` if they find
// another version. What a server does not name is not compared. One I/O thread.
struct opened_version {
  std::string file;                          // its device, inode and time of change
  bool is_of_server = false;                 // rather than of a file
  std::optional<std::uint64_t> total;        // bytes of the whole object
  std::optional<std::string> etag;           // as the server gave it
  std::optional<std::string> last_modified;  // as the server gave it
  bool ignores_ranges = false;  // the server sends, for each range, all that is before it as well

  // Whether a source that begins within the object is known to be of this version, and reads no
  // more than its range.
  bool can_be_opened_within() const {
    return !is_of_server || ((etag || last_modified) && !ignores_ranges);
  }
};

// The surroundings of a source. The referents outlive the source and its tasks.
struct source_context {
  runtime& threads;                      // the engine's
  io_thread& io;                         // on which the source runs
  scope& tasks;                          // for coroutines that read ahead
  std::shared_ptr<memory_share> memory;  // of this source alone; acquire buffers from it
  const source_options& options;         // how to read
  source_counters& counters;             // to be counted up
  std::shared_ptr<opened_version> version = nullptr;  // for objects opened repeatedly
};

// Opens a range of `where`, the parsed `text`; of a range that goes beyond the object's end, what
// there is. Called on the I/O thread of the registry, once each time that an object is opened. May
// be copied; lives as long as the registry.
using source_factory = std::function<awaitable<result<std::unique_ptr<byte_source>>>(
    source_context context, std::string text, url where, byte_range range)>;

}  // namespace millrace
