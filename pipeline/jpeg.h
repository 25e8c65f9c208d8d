#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/result.h"
#include "pipeline/augment.h"

namespace millrace {

// What a file may make the decoder do. Hostile files announce gigapixels and thousands of scans.
struct jpeg_limits {
  std::uint64_t max_pixels = 100'000'000;
  int max_scans = 100;                              // of a progressive file
  std::uint64_t max_coefficient_bytes = 512 << 20;  // which a progressive file is decoded from
};

// Decodes baseline and progressive JPEGs by libjpeg-turbo (islow, fancy upsampling), gray, RGB,
// YCbCr, CMYK and YCCK alike to RGB; only the rows and columns that are asked for. A warning of the
// library (corrupt or missing data) is an error. One thread; keeps its memory from image to image.
class jpeg_decoder {
 public:
  jpeg_decoder();
  ~jpeg_decoder();
  jpeg_decoder(const jpeg_decoder&) = delete;
  jpeg_decoder& operator=(const jpeg_decoder&) = delete;

  // Decodes `file` into `out`: view.window.height x view.window.width x 3 bytes, for the view that
  // `choose` gives for the image's width and height. Fails with bad_image or too_large (both
  // skippable); `out` is then undefined.
  result<void> decode(std::span<const std::byte> file, const jpeg_limits& limits,
                      const std::function<view_of_image(int width, int height)>& choose,
                      const std::function<std::span<std::uint8_t>(const view_of_image&)>& out);

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

// Encodes width x height RGB pixels (baseline, 4:2:0).
std::vector<std::byte> encode_jpeg(std::span<const std::uint8_t> rgb, int width, int height,
                                   int quality);

}  // namespace millrace
