#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "pipeline/images/orientation.h"

namespace millrace {

// What a PNG's chunks say of the file, whatever part of its pixels is needed: libpng looks at a
// checksum only where it has read all of the chunk, and at nothing behind the pixels.
struct png_chunks {
  // Of its pixels and what stands behind them, the chunks with wrong checksums, and the name of the
  // first one. What stands in front of the pixels libpng looks at.
  int damaged = 0;
  std::string_view damaged_name;
  // Whether it goes on to its last chunk, of which the name need not be whole. Another one may turn
  // the image: where the end is missing, that is not known.
  bool has_end = false;
  // Of the first chunk eXIf, wherever it stands, if asked for.
  exif_orientation orientation;
};

// `file` begins with PNG's signature. What it says of the rest does not need to be true. Reads its
// bytes once, from the pixels on.
png_chunks chunks_of_png(std::span<const std::byte> file, bool orient);

}  // namespace millrace
