#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "pipeline/pixels/view.h"

namespace millrace {

// Bare libjpeg-turbo, for comparison. One thread.
class bare_jpeg {
 public:
  bare_jpeg();
  ~bare_jpeg();
  bare_jpeg(const bare_jpeg&) = delete;
  bare_jpeg& operator=(const bare_jpeg&) = delete;

  // Decodes the crop's rows and MCU columns to RGB, into one reused row: the limit. False if it
  // cannot be decoded.
  bool decode_region(std::span<const std::byte> file, const pixel_box& crop);
  // Decodes the whole image to RGBX, in consecutive rows of 4 x width bytes. Reuses the memory of
  // `out`. `fast`: with the fast transform, as in FFCV.
  bool decode_whole(std::span<const std::byte> file, bool fast, std::vector<unsigned char>& out);

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace millrace
