#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/result.h"
#include "pipeline/images/jpeg.h"

namespace millrace {

// The same JPEG with a restart marker every `mcus` MCUs, or the divisor of the MCUs in a row that
// is nearest to it: what jpeg_decoder needs to decode a region without what stands before it.
// Nothing is lost: coefficients and quantisation tables are equal (checked before this returns),
// all markers (EXIF, ICC, comments) are kept. Huffman tables are optimised; progressive and
// arithmetic-coded files become sequential, Huffman-coded ones. Any thread.
//
// Fails with bad_image where the file is damaged, lacks scans (decoders make up for those of a
// progressive file, and would not for those of a sequential one), is of a kind that cannot be
// rewritten (12 bits, lossless) or followed by other data (gain maps, videos, further images, which
// markers point to), and with too_large above the limits.
result<std::vector<std::byte>> with_restart_runs(std::span<const std::byte> file, int mcus,
                                                 const image_limits& limits = {});

}  // namespace millrace
