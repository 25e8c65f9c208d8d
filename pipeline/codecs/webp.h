#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "engine/base/result.h"
#include "pipeline/pixels/options.h"

namespace millrace {

// Decodes lossy and lossless WebP images by libwebp, to RGB: alpha is left out. Holds only the
// region that is needed, and does not decode what is below it. Refuses animations. One thread;
// keeps its memory from image to image.
class webp_decoder {
 public:
  webp_decoder();
  ~webp_decoder();
  webp_decoder(const webp_decoder&) = delete;
  webp_decoder& operator=(const webp_decoder&) = delete;

  // As jpeg_decoder::decode().
  result<void> decode(std::span<const std::byte> file, const image_options& options,
                      const view_chooser& choose, const pixel_place& place);
  // 1 if the last image was cut or its chunks were damaged, else 0.
  int warnings() const;

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace millrace
