#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/result.h"
#include "pipeline/images/options.h"

namespace millrace {

// Decodes PNGs by libpng, of every colour type and depth, to RGB: 16 bits become their upper 8,
// alpha is left out, gamma and colour profiles are not applied (as Pillow's convert("RGB")). Row by
// row, no further than the last that is needed; interlaced ones are held whole. A wrong checksum is
// an error, or a warning in lenient. One thread; keeps its rows' memory from image to image.
class png_decoder {
 public:
  png_decoder();
  ~png_decoder();
  png_decoder(const png_decoder&) = delete;
  png_decoder& operator=(const png_decoder&) = delete;

  // As jpeg_decoder.
  result<void> decode(std::span<const std::byte> file, const image_options& options,
                      const view_chooser& choose, const pixel_place& place);
  int warnings() const;

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

// Encodes width x height RGB pixels, for looking at, row by row: `row_of(y)` gives the pixels of
// each in turn, and `take` gets the file's bytes as they come. Holds a few rows, and what those two
// throw goes through.
void encode_png(int width, int height,
                const std::function<std::span<const std::uint8_t>(int y)>& row_of,
                const std::function<void(std::span<const std::byte>)>& take);
// The same of pixels that lie there, as a whole.
std::vector<std::byte> encode_png(std::span<const std::uint8_t> rgb, int width, int height);

}  // namespace millrace
