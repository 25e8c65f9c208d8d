#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "pipeline/images/resample.h"
#include "pipeline/images/view.h"

namespace millrace {

// Limits for decoders. Hostile files announce gigapixels and thousands of scans.
struct image_limits {
  std::uint64_t max_pixels = 100'000'000;
  int max_scans = 100;  // of a progressive JPEG
  // Held at once for images that cannot be decoded row by row: coefficients of progressive JPEGs,
  // pixels of interlaced PNGs and of WebPs.
  std::uint64_t max_held_bytes = 512 << 20;
  double max_cpu_seconds = 10;
};

struct image_options {
  image_limits limits = {};
  resample_filter filter = resample_filter::bilinear;
  // Corrupt data that the libraries only warn of is not an error; it is counted, see warnings().
  bool lenient = false;
  // Images whose end is missing are not errors: the missing part is gray, and counted as a warning.
  bool fill_truncated = false;
  // Images are turned as EXIF says before anything else; sizes and views are those of the turned
  // image.
  bool orient = true;
  // JPEG: where restart markers cut the file into runs, only those under the region are decoded.
  // The pixels are the same.
  bool runs = true;
  // Baseline JPEG: the Huffman-coded data is decoded by jpeg_huffman in the place of libjpeg. The
  // coefficients are the same.
  bool own_huffman = true;
  // JPEG, not exact: images that are made smaller than half are decoded at a half, a quarter or an
  // eighth of their size, by a faster transform and plain chroma upsampling.
  bool fast = false;
  // Above 0: every file is bare pixels, width x height x 3 bytes of RGB.
  int raw_width = 0;
  int raw_height = 0;
};

// Returns the view of an image of that size, after turning. A pure function, which may be called
// twice.
using view_chooser = std::function<view_of_image(int width, int height)>;
// Returns the memory for a view's pixels: window.height x window.width x 3 bytes, NHWC. The same
// when called twice.
using pixel_place = std::function<std::span<std::uint8_t>(const view_of_image&)>;

}  // namespace millrace
