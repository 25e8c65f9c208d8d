#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "pipeline/pixels/options.h"

namespace millrace {

class row_sink;

// Reads images that are not compressed: .npy arrays of bytes (height x width x 3, height x width x
// 1, height x width, or 3 x height x width), PGM and PPM files of 8 bits, and bare RGB of a given
// size. One thread; keeps its memory from image to image.
class raw_pixels {
 public:
  raw_pixels();
  ~raw_pixels();
  raw_pixels(const raw_pixels&) = delete;
  raw_pixels& operator=(const raw_pixels&) = delete;

  // As jpeg_decoder::decode(). Never warns.
  result<void> decode(std::span<const std::byte> file, const image_options& options,
                      const view_chooser& choose, const pixel_place& place);

 private:
  std::unique_ptr<row_sink> sink_;
  std::vector<std::uint8_t> lines_;  // two
};

}  // namespace millrace
