#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "pipeline/augment.h"

namespace millrace {

// What libjpeg-turbo does of a crop with nothing around it: the crop's rows and MCU columns to RGB,
// into one row that is written over. The limit to compare decoding with. One thread.
class bare_jpeg {
 public:
  bare_jpeg();
  ~bare_jpeg();
  bare_jpeg(const bare_jpeg&) = delete;
  bare_jpeg& operator=(const bare_jpeg&) = delete;

  // Whether it could be decoded. `choose` says which part of an image of that size.
  bool decode(std::span<const std::byte> file,
              const std::function<pixel_box(int width, int height)>& choose);

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace millrace
