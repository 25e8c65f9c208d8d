#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "pipeline/codecs/jpeg.h"

namespace millrace {

// Returns the same JPEG with a restart marker every `mcus` MCUs, or every n MCUs for the divisor n
// of the MCUs in a row that is nearest to it. jpeg_decoder can then decode a region without the
// data before it. Lossless: coefficients and quantisation tables are equal (checked before this
// returns), and all markers (EXIF, ICC, comments) are kept. Huffman tables are optimised;
// progressive and arithmetic-coded files become sequential, Huffman-coded ones. Any thread.
//
// Fails with bad_image if the file is damaged, lacks scans (decoders compensate for that in a
// progressive file, but not in a sequential one), is of a kind that cannot be rewritten (12 bits,
// lossless), or is followed by other data that markers refer to (gain maps, videos, further
// images). Fails with too_large above the limits.
result<std::vector<std::byte>> with_restart_runs(std::span<const std::byte> file, int mcus,
                                                 const image_limits& limits = {});

}  // namespace millrace
