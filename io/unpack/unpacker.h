#pragma once

#include <cstddef>
#include <memory>

#include "io/source.h"

namespace millrace {

// The treatment of a compressed stream that ends too early.
inline constexpr const char* cut_stream_hint =
    "the shard was cut; fetch or write it again. Offsets are those in its unpacked archive";

// One decompressor. Runs within `unpack`, one step at a time.
class unpacker {
 public:
  virtual ~unpacker() = default;
  // The result of a step: bytes written, and whether more input is needed. 0 bytes without needing
  // input: the end.
  struct progress {
    std::size_t written = 0;
    bool wants_input = false;
  };
  // An empty piece ends the input. Call it only when input is needed.
  virtual void feed(bytes input) = 0;
  // Fills `into` as far as the input allows. The caller keeps `self` alive until then.
  virtual awaitable<result<progress>> step(std::shared_ptr<unpacker> self, buffer into) = 0;
};

// By zlib, because it verifies the checksum; runs in the CPU pool.
std::shared_ptr<unpacker> make_gunzip(const source_context& context);
// By one of libarchive's filters (ARCHIVE_FILTER_XZ), which pull their input: each has a thread of
// its own. The output is not unpacked again, whatever it is.
std::shared_ptr<unpacker> make_archive_filter(const source_context& context, int filter);

}  // namespace millrace
