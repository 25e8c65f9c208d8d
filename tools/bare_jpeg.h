#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "pipeline/images/view.h"

namespace millrace {

// Bare libjpeg-turbo, for comparison. One thread.
class bare_jpeg {
 public:
  bare_jpeg();
  ~bare_jpeg();
  bare_jpeg(const bare_jpeg&) = delete;
  bare_jpeg& operator=(const bare_jpeg&) = delete;

  // The crop's rows and MCU columns to RGB, into one row that is written over: the limit. Whether
  // it could be decoded.
  bool decode_region(std::span<const std::byte> file, const pixel_box& crop);
  // All of the image, to RGBX, rows of 4 x width bytes one after the other. Reuses the memory of
  // `out`. `fast`: by the fast transform, which FFCV takes.
  bool decode_whole(std::span<const std::byte> file, bool fast, std::vector<unsigned char>& out);

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace millrace
