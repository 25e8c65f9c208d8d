#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/base/result.h"
#include "engine/coroutines/awaitable.h"
#include "engine/coroutines/scope.h"
#include "engine/memory/bytes.h"
#include "engine/memory/memory.h"
#include "engine/threads/runtime.h"
#include "io/names/url.h"
#include "io/options.h"
#include "io/source_counters.h"

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
