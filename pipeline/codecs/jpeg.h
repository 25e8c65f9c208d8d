#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "pipeline/pixels/options.h"

namespace millrace {

// Decodes baseline, progressive and arithmetic-coded JPEGs by libjpeg-turbo (islow, fancy
// upsampling): gray, RGB, YCbCr, CMYK and YCCK, all to RGB. Decodes only the rows and columns that
// are needed, straight into the output: no buffer is as large as the image. One thread; keeps its
// memory from image to image.
class jpeg_decoder {
 public:
  jpeg_decoder();
  ~jpeg_decoder();
  jpeg_decoder(const jpeg_decoder&) = delete;
  jpeg_decoder& operator=(const jpeg_decoder&) = delete;

  // Decodes `file`: asks `choose` for the view of an image of its size, and writes that to the
  // memory that `place` returns. Fails with bad_image or too_large, both skippable; the memory then
  // holds anything.
  result<void> decode(std::span<const std::byte> file, const image_options& options,
                      const view_chooser& choose, const pixel_place& place);
  // The number of the library's warnings about the last image.
  int warnings() const;

  // The size that a file states, before the image is turned.
  struct image_size {
    int width = 0;   // in pixels
    int height = 0;  // in pixels
  };
  // Reads the size from the headers. Fails as decode() does.
  result<image_size> read_size(std::span<const std::byte> file, const image_limits& limits = {});

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

// Encodes width x height RGB pixels as a baseline JPEG with 4:2:0 chroma. `quality`: 1 to 100.
std::vector<std::byte> encode_jpeg(std::span<const std::uint8_t> rgb, int width, int height,
                                   int quality);

}  // namespace millrace
