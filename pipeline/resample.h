#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/augment.h"

namespace millrace {

// The weights of one axis of a separable resampling with Pillow's antialiased bilinear (triangle)
// filter in fixed point. Output i is the sum over k of weight[i * taps + k] * input[first[i] + k],
// with weights that sum to 1 << precision_bits.
//
// Source of the filter and its rounding: Pillow, libImaging/Resample.c (the same results within 1
// of 255, checked by tests).
struct filter_axis {
  static constexpr int precision_bits = 22;
  int taps = 0;
  std::vector<int> first;  // index of the first input of each output
  std::vector<int> count;  // inputs of each output
  std::vector<std::int32_t> weight;

  // For the outputs [out_first, out_first + out_count) of an axis that scales `in_size` to
  // `out_size`. Reuses its memory.
  void assign(int in_size, int out_size, int out_first, int out_count);
};

// Turns the rows of a crop, as they are decoded, into an output of size x size RGB bytes. Memory:
// one output-wide row per row of the crop, kept from image to image. One thread.
class resampler {
 public:
  // Prepares for one image.
  void begin(const view_of_image& view);
  // The rows of the crop that the output needs: [first_row(), end_row()), counted in the crop.
  int first_row() const { return first_row_; }
  int end_row() const { return end_row_; }
  // A row of the crop, crop.width pixels of 4 bytes (RGBX), in order from first_row().
  void add_row(const std::uint8_t* rgbx);
  // After end_row() rows: writes window.height x window.width x 3 bytes.
  void finish(std::uint8_t* out);

 private:
  view_of_image view_;
  filter_axis columns_;
  filter_axis rows_;
  int first_row_ = 0;
  int end_row_ = 0;
  int added_ = 0;
  std::vector<std::uint8_t> narrowed_;  // rows of the crop, scaled in width
  std::vector<std::int32_t> sums_;      // of one output row
};

}  // namespace millrace
