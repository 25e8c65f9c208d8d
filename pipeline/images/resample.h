#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/images/view.h"

namespace millrace {

// How an output pixel is made of the inputs around it: Pillow's filters of the same names, widened
// where the image is made smaller (antialiasing).
enum class resample_filter : std::uint8_t { box, bilinear, bicubic, lanczos };

// The weights of one axis of a separable resampling in fixed point. Output i is the sum over
// k < count[i] of weight[i * stride + k] * input[first[i] + k]; each output's weights sum to
// 1 << kernels::weight_bits exactly, so that a flat area stays as it is.
//
// Source of the filters: Pillow, libImaging/Resample.c. Results of box and bilinear are within 1
// of 255 of Pillow's (checked by tests): it rounds to bytes between the two passes, where this
// keeps 6 bits more. Those of the others also differ where the first pass overshoots, and is cut.
struct filter_axis {
  std::size_t stride = 0;           // a multiple of 4
  std::vector<std::int32_t> first;  // index of the first input of each output
  std::vector<std::int32_t> count;  // inputs of each output
  std::vector<std::int16_t> weight;

  // Which inputs are scaled: [from, from + size) of [0, limit).
  struct inputs {
    double from = 0;
    double size = 0;
    int limit = 0;
    // They come in reverse, and their outputs: weights are those of the right order, mirrored.
    // Where an output's centre is between two inputs, rounding decides, and is not the same both
    // ways.
    bool mirrored = false;
    static inputs all(int size) { return {.size = static_cast<double>(size), .limit = size}; }
  };
  // For the outputs [out_first, out_first + out_count) of an axis that scales `in` to `out_size`;
  // the last first, where `reversed`. Reuses its memory.
  void assign(resample_filter filter, const inputs& in, int out_size, int out_first, int out_count,
              bool reversed = false);

 private:
  std::vector<double> exact_;
};

// One image's resampling.
struct resample_job {
  pixel_box source;  // of the decoded image: the pixels that may be read
  // Of it, counted from its corner, what is scaled; all of it, unless the image was decoded at less
  // than its own size.
  double x = 0;
  double y = 0;
  double width = 0;
  double height = 0;
  int scaled_width = 0;  // to this, of which `window` is kept
  int scaled_height = 0;
  pixel_box window;
  // The source's columns, rows are the image's in reverse; `source` and `window` count as it does.
  bool mirrors_columns = false;
  bool mirrors_rows = false;
  bool flip = false;         // the last column first
  bool upside_down = false;  // the last row first
  resample_filter filter = resample_filter::bilinear;

  static resample_job of(const view_of_image& view, resample_filter filter);
};

// Turns the rows of a crop, as they are decoded, into rows of the output, each as soon as its last
// input is there. Memory: two rows of the crop, and as many rows of the output as the filter is
// high; kept from image to image. One thread.
class resampler {
 public:
  // Prepares for one image, whose output goes to `out`: window.height x window.width x 3 bytes.
  void begin(const resample_job& job, std::uint8_t* out);
  // The rows of the source that the output needs: [first_row(), end_row()), counted in it.
  int first_row() const { return first_row_; }
  int end_row() const { return end_row_; }
  // Of each row, the pixels of the source that the output needs: [first_column(), end_column()).
  int first_column() const { return first_column_; }
  int end_column() const { return end_column_; }
  std::size_t readable_behind() const { return columns_.stride * 4; }
  // Whether the row added last must still stay as it is.
  bool holds_row() const { return waiting_ != nullptr; }
  // The rows in order from first_row(), RGBX, from first_column() on; readable_behind() bytes after
  // the last pixel must be readable. The output is whole after the last row. A row must stay as it
  // is until the next one has been added.
  void add_row(const std::uint8_t* rgbx);

 private:
  void write_outputs();
  std::int16_t* narrowed(int row);

  resample_job job_;
  filter_axis columns_;
  filter_axis rows_;
  int first_row_ = 0;
  int end_row_ = 0;
  int first_column_ = 0;
  int end_column_ = 0;
  int next_row_ = 0;                       // that is added
  std::size_t next_out_ = 0;               // that is written
  const std::uint8_t* waiting_ = nullptr;  // a row that is narrowed together with the next one
  std::uint8_t* out_ = nullptr;
  std::vector<std::int16_t> ring_;  // of narrowed rows
  std::size_t ring_stride_ = 0;
  int ring_rows_ = 0;
  std::vector<const std::int16_t*> inputs_;  // of one output row
};

}  // namespace millrace
