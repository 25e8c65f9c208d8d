#pragma once

#include <memory>

#include "io/names/compression.h"
#include "io/unpack/stream_windows.h"
#include "io/unpack/unpacker.h"

namespace millrace {

// The decoder of a compression.
struct decoder {
  compression how;
  int filter;  // libarchive's code for it: ARCHIVE_FILTER_XZ
  std::shared_ptr<unpacker> (*make)(const source_context& context, int filter);
  // Follows one stream. Returns null if its decoder takes less than stream_windows::free_bytes,
  // whatever the stream claims.
  std::unique_ptr<stream_windows> (*windows)();
};

// Each of known_compressions has one. Throws std::out_of_range for none.
const decoder& decoder_of(compression how);

}  // namespace millrace
