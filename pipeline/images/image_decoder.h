#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "pipeline/images/jpeg.h"
#include "pipeline/images/png.h"
#include "pipeline/images/raw_pixels.h"
#include "pipeline/images/webp.h"

namespace millrace {

// Decodes images of every kind that millrace takes, told apart by their first bytes, never by their
// names: JPEG, PNG, WebP, PGM and PPM, .npy, bare pixels. Refuses other kinds by name (bad_image).
// One thread; keeps its memory from image to image. Example: examples/masks.cc.
class image_decoder {
 public:
  // As jpeg_decoder::decode().
  result<void> decode(std::span<const std::byte> file, const image_options& options,
                      const view_chooser& choose, const pixel_place& place);
  // How often the decoder warned about the last image.
  int warnings() const { return warnings_; }

 private:
  jpeg_decoder jpeg_;
  png_decoder png_;
  webp_decoder webp_;
  raw_pixels raw_;
  int warnings_ = 0;
};

}  // namespace millrace
