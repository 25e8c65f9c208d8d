#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pipeline/pixels/options.h"
#include "pipeline/pixels/orientation.h"
#include "pipeline/pixels/resample.h"

namespace millrace {

// Takes the rows of a stored image as a decoder outputs them: resamples the part that a view needs
// and applies the EXIF orientation on the way to the output. One thread; keeps its memory from
// image to image.
class row_sink {
 public:
  // Whether a decoder can output an image at a half, a quarter or an eighth of its size.
  enum class decoder_scales { no, yes };
  // Begins a stored image of width x height. The rows that follow have 1 / scale() of its size;
  // scale() is 1 unless `scales` and options.fast allow more.
  void begin(const view_chooser& choose, const pixel_place& place, const image_options& options,
             exif_orientation turned, int width, int height,
             decoder_scales scales = decoder_scales::no);
  int scale() const { return scale_; }
  // The pixels that the output needs, at the scale of the rows.
  pixel_box needed() const;
  // Bytes that must be readable after a row's last needed pixel.
  std::size_t readable_behind() const { return resample_.readable_behind(); }
  // Whether the row added last must still be kept unchanged.
  bool holds_row() const { return resample_.holds_row(); }
  // Adds the needed rows in order, RGBX, from the first needed pixel on. Each must stay unchanged
  // until the next one has been added.
  void add_row(const std::uint8_t* rgbx) { resample_.add_row(rgbx); }
  // Call after the last row: completes the output.
  void finish();

 private:
  resampler resample_;
  resample_job job_;
  int scale_ = 1;
  std::span<std::uint8_t> out_;
  bool transposed_ = false;
  std::vector<std::uint8_t> turned_;  // the output before transposition
};

}  // namespace millrace
