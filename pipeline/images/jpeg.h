#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/result.h"
#include "pipeline/images/resample.h"
#include "pipeline/images/view.h"

namespace millrace {

// What a file may make the decoder do. Hostile files announce gigapixels and thousands of scans.
struct jpeg_limits {
  std::uint64_t max_pixels = 100'000'000;
  int max_scans = 100;                              // of a progressive file
  std::uint64_t max_coefficient_bytes = 512 << 20;  // which a progressive file is decoded from
  double max_cpu_seconds = 10;
};

struct jpeg_options {
  jpeg_limits limits;
  resample_filter filter = resample_filter::bilinear;
  // What the library only warns of (corrupt or missing data) is no error; see warnings().
  bool lenient = false;
  // Images are turned as EXIF says before anything else; sizes and views are those of the turned
  // image.
  bool orient = true;
  // Where restart markers cut the file into runs, only those under the region are decoded. The
  // pixels are the same.
  bool runs = true;
  // Not exact: images that are made smaller than half are decoded at a half, a quarter or an eighth
  // of their size, by a faster transform and plain chroma upsampling.
  bool fast = false;
};

// Decodes baseline, progressive and arithmetic-coded JPEGs by libjpeg-turbo (islow, fancy
// upsampling), gray, RGB, YCbCr, CMYK and YCCK alike to RGB; only the rows and columns that are
// asked for, and straight into the output: no buffer is as large as the image. One thread; keeps
// its memory from image to image.
class jpeg_decoder {
 public:
  jpeg_decoder();
  ~jpeg_decoder();
  jpeg_decoder(const jpeg_decoder&) = delete;
  jpeg_decoder& operator=(const jpeg_decoder&) = delete;

  // Decodes `file` into `out`: view.window.height x view.window.width x 3 bytes, for the view that
  // `choose` gives for the image's width and height. Fails with bad_image or too_large (both
  // skippable); `out` is then undefined.
  result<void> decode(std::span<const std::byte> file, const jpeg_options& options,
                      const std::function<view_of_image(int width, int height)>& choose,
                      const std::function<std::span<std::uint8_t>(const view_of_image&)>& out);
  // How often the library warned about the last image.
  int warnings() const;

  // The size that the file says it has, before it is turned. Fails like decode().
  struct image_size {
    int width = 0;
    int height = 0;
  };
  result<image_size> read_size(std::span<const std::byte> file, const jpeg_limits& limits = {});

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

// Encodes width x height RGB pixels (baseline, 4:2:0).
std::vector<std::byte> encode_jpeg(std::span<const std::uint8_t> rgb, int width, int height,
                                   int quality);

}  // namespace millrace
