#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "pipeline/pixels/resample.h"
#include "pipeline/pixels/view.h"

namespace millrace {

// Limits of decoders: hostile files announce gigapixels and thousands of scans. A file beyond one
// of them fails with too_large or bad_image.
struct image_limits {
  std::uint64_t max_pixels = 100'000'000;  // width x height
  int max_scans = 100;                     // of a progressive JPEG
  // Bytes held at once for images that cannot be decoded row by row: coefficients of progressive
  // JPEGs, pixels of interlaced PNGs and of WebPs.
  std::uint64_t max_held_bytes = 512 << 20;
  double max_cpu_seconds = 10;  // of one image
};

// Options of decoding images of every kind.
struct image_options {
  image_limits limits = {};                            // beyond which an image is an error
  resample_filter filter = resample_filter::bilinear;  // for scaling the crop to the output
  // Damaged data that the libraries only warn about is counted (see warnings()), and is not an
  // error.
  bool lenient = false;
  // Images whose end is missing are not errors: the missing part is gray, and counts as a warning.
  bool fill_truncated = false;
  // Turns images as EXIF demands, before anything else; sizes and views are those of the turned
  // image.
  bool orient = true;
  // JPEG: decodes only the runs under the region, if restart markers cut the file into runs. The
  // pixels are the same.
  bool runs = true;
  // Baseline JPEG: decodes the Huffman-coded data by jpeg_huffman rather than libjpeg. The
  // coefficients are the same.
  bool own_huffman = true;
  // JPEG, not exact: decodes images that are scaled to less than half at a half, a quarter or an
  // eighth of their size, by a faster transform and plain chroma upsampling.
  bool fast = false;
  // Above 0: every file is bare RGB, raw_width x raw_height x 3 bytes. At most 16,384.
  int raw_width = 0;
  int raw_height = 0;  // set both or none
};

// Returns the view of an image of this size, after turning. A pure function: it may be called
// twice.
using view_chooser = std::function<view_of_image(int width, int height)>;
// Returns the memory for a view's pixels: window.height x window.width x 3 bytes, NHWC. It may be
// called twice, and must then return the same.
using pixel_place = std::function<std::span<std::uint8_t>(const view_of_image&)>;

}  // namespace millrace
