#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "engine/async.h"
#include "engine/bytes.h"
#include "engine/memory.h"
#include "engine/result.h"
#include "engine/runtime.h"
#include "engine/scope.h"
#include "engine/settings.h"
#include "io/url.h"

namespace millrace {

// The bytes of one object, in order, from a given offset on. One I/O thread, one call at a time.
// Destroying it gives up what is under way.
class byte_source {
 public:
  virtual ~byte_source() = default;
  // The next bytes; an empty slice at the end, and only when the whole object has been given:
  // a cut or a shrunk object is an error. After an error the source is of no more use.
  virtual awaitable<result<bytes>> read() = 0;
};

// How bytes are fetched. Every field is also a MILLRACE_ variable.
struct source_options {
  std::size_t extent_bytes = 4_MiB;  // one read; larger: fewer seeks, more memory per open shard
  int read_ahead = 2;                // extents ready or under way beyond the one in use
  std::chrono::milliseconds read_timeout{60'000};
  std::chrono::milliseconds http_connect_timeout{5'000};
  std::chrono::milliseconds http_first_byte_timeout{10'000};
  std::chrono::milliseconds http_progress_timeout{10'000};  // for 64 KiB
  int http_attempts = 6;                                    // in a row without a byte gained
  std::chrono::milliseconds http_backoff{500};

  static source_options from(const settings& s);
  // Memory one open source needs: at least two extents, and what its read-ahead can use.
  std::size_t least_memory() const { return 2 * extent_bytes; }
  std::size_t most_memory() const {
    return (1 + static_cast<std::size_t>(read_ahead)) * extent_bytes;
  }
};

// Counted by sources; one I/O thread only.
struct source_counters {
  std::uint64_t bytes = 0;
  std::uint64_t requests = 0;
  std::uint64_t retries = 0;
};

// What a source lives in. The referents outlive the source and its tasks.
struct source_context {
  runtime& threads;
  io_thread& io;
  scope& tasks;                          // where read-ahead runs
  std::shared_ptr<memory_share> memory;  // of this source alone
  const source_options& options;
  source_counters& counters;
};

// Opens `where` at `offset`.
using source_factory = std::function<awaitable<result<std::unique_ptr<byte_source>>>(
    source_context context, std::string text, url where, std::uint64_t offset)>;

// Scheme -> factory. Passed in wherever sources are opened; there is no global one.
class source_registry {
 public:
  void add(std::string scheme, source_factory factory);
  // Fails with `unsupported` for a scheme that nobody added.
  awaitable<result<std::unique_ptr<byte_source>>> open(source_context context, std::string text,
                                                       std::uint64_t offset) const;

 private:
  std::map<std::string, source_factory, std::less<>> factories_;
};

// file:, "-" and http: for sources on one I/O thread, with a pool of kept-alive connections of its
// own.
source_registry standard_sources();

}  // namespace millrace
