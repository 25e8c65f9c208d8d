#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "pipeline/pixels/orientation.h"

namespace millrace {

// What a PNG's chunks say about the file, whatever pixels are needed. libpng verifies a checksum
// only after reading the whole chunk, and reads nothing after the pixels.
struct png_chunks {
  // The number of chunks with wrong checksums, from the pixels on, and the name of the first one.
  // libpng verifies the chunks before the pixels.
  int damaged = 0;
  std::string_view damaged_name;
  // Whether the file reaches its last chunk, whose name may be incomplete. If it does not, the
  // missing part may have held an orientation.
  bool has_end = false;
  // From the first eXIf chunk, anywhere in the file, if asked for.
  exif_orientation orientation;
};

// `file` begins with PNG's signature; the rest may be any bytes. Reads the bytes from the pixels on
// once.
png_chunks chunks_of_png(std::span<const std::byte> file, bool orient);

}  // namespace millrace
