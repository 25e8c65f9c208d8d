#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "pipeline/pixels/options.h"

namespace millrace {

// Decodes PNGs by libpng, of every colour type and depth, to RGB: 16 bits become their upper 8,
// alpha is left out, gamma and colour profiles are not applied (as Pillow's convert("RGB")). Row by
// row, no further than the last row that is needed; interlaced images are held whole. A wrong
// checksum is an error, or a warning if image_options::lenient. One thread; keeps its memory from
// image to image.
class png_decoder {
 public:
  png_decoder();
  ~png_decoder();
  png_decoder(const png_decoder&) = delete;
  png_decoder& operator=(const png_decoder&) = delete;

  // As jpeg_decoder::decode().
  result<void> decode(std::span<const std::byte> file, const image_options& options,
                      const view_chooser& choose, const pixel_place& place);
  // The number of libpng's warnings about the last image.
  int warnings() const;

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

// Encodes width x height RGB pixels row by row: `row_of(y)` returns the pixels of each row in turn,
// and `take` gets the bytes of the file as they come. Holds a few rows. Passes on what the two
// functions throw.
void encode_png(int width, int height,
                const std::function<std::span<const std::uint8_t>(int y)>& row_of,
                const std::function<void(std::span<const std::byte>)>& take);
// Encodes width x height x 3 bytes of RGB.
std::vector<std::byte> encode_png(std::span<const std::uint8_t> rgb, int width, int height);

}  // namespace millrace
