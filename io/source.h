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
// Destroying it cancels reads under way.
class byte_source {
 public:
  virtual ~byte_source() = default;
  // The next bytes; an empty slice at the end, and only when all has been given:
  // a cut or a shrunk object is an error. After an error the source must not be used.
  virtual awaitable<result<bytes>> read() = 0;
};

// The memory that one open source needs, and the most that it can use.
struct source_memory {
  std::size_t least = 0;
  std::size_t most = 0;
};
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

// The version of an object that was opened once and is opened again: the first source that is given
// an empty one fills it, by its first read() at the latest; the later ones fail with `changed`
// where they find another version. What a server does not name is not compared. One I/O thread.
struct opened_version {
  std::string file;  // its device, inode and time of change
  bool is_of_server = false;
  std::optional<std::uint64_t> total;
  std::optional<std::string> etag;
  std::optional<std::string> last_modified;
  bool ignores_ranges = false;  // its server: each source reads all that is in front of its range

  // Whether a source that begins within the object is known to be of this version and reads no
  // more than its range.
  bool can_be_opened_within() const {
    return !is_of_server || ((etag || last_modified) && !ignores_ranges);
  }
};

// The surroundings of a source. The referents outlive the source and its tasks.
struct source_context {
  runtime& threads;
  io_thread& io;
  scope& tasks;                          // where read-ahead runs
  std::shared_ptr<memory_share> memory;  // of this source alone
  const source_options& options;
  source_counters& counters;
  std::shared_ptr<opened_version> version = nullptr;  // where an object is opened several times
};

// Opens a range of `where`, which is what `text` says; of a range that goes on behind the object's
// end, what is there. Called on the I/O thread of the registry, once for each time that an object
// is opened; lives as long as the registry, and may be copied.
using source_factory = std::function<awaitable<result<std::unique_ptr<byte_source>>>(
    source_context context, std::string text, url where, byte_range range)>;

}  // namespace millrace
