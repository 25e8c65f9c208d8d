#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "pipeline/pixels/view.h"

namespace millrace {

// Filter that computes an output pixel from the inputs around it: Pillow's filters of the same
// names, widened if the image is made smaller (antialiasing).
enum class resample_filter : std::uint8_t { box, bilinear, bicubic, lanczos };

// The weights of one axis of a separable resampling, in fixed point. Output i is the sum over k <
// count[i] of weight[i * stride + k] * input[first[i] + k]; the weights of each output sum to 1 <<
// kernels::weight_bits exactly, so that a flat area stays as it is.
//
// Source of the filters: Pillow, libImaging/Resample.c. Results of box and bilinear are within 1 of
// 255 of Pillow's (checked by tests): Pillow rounds to bytes between the two passes, while this
// keeps 6 bits more. Those of the others also differ where the first pass overshoots and is
// clipped.
struct filter_axis {
  std::size_t stride = 0;            // a multiple of 4
  std::vector<std::int32_t> first;   // index of the first input of each output
  std::vector<std::int32_t> count;   // inputs of each output
  std::vector<std::int16_t> weight;  // `stride` for each output

  // The inputs that are scaled: [from, from + size) of [0, limit).
  struct inputs {
    double from = 0;  // may lie between two inputs
    double size = 0;  // may be a fraction
    int limit = 0;    // inputs there are
    // The inputs come in reverse, and so do their outputs: the weights are those of the right
    // order, mirrored. If an output's centre is between two inputs, rounding decides, and differs
    // between the two directions.
    bool mirrored = false;
    // All of `size` inputs.
    static inputs all(int size) { return {.size = static_cast<double>(size), .limit = size}; }
  };
  // Sets the weights of the outputs [out_first, out_first + out_count) of an axis that scales `in`
  // to `out_size`; the last output first if `reversed`. Reuses its memory.
  void assign(resample_filter filter, const inputs& in, int out_size, int out_first, int out_count,
              bool reversed = false);
  // The input that the first output is, if the outputs are inputs as they are, one after the other,
  // in order: nothing is scaled then.
  std::optional<int> copied_from() const;

 private:
  std::vector<double> exact_;
};

// The resampling of one image.
struct resample_job {
  pixel_box source;  // of the decoded image: the pixels that may be read
  // The part of `source`, from its corner, that is scaled: all of it, unless the image was decoded
  // at less than its own size.
  double x = 0;
  double y = 0;           // rows from the corner
  double width = 0;       // columns that are scaled
  double height = 0;      // rows that are scaled
  int scaled_width = 0;   // size to which it is scaled
  int scaled_height = 0;  // rows to which it is scaled
  pixel_box window;       // the part of that which is kept
  // The columns of `source` are the image's in reverse; `source` and `window` count in its order.
  bool mirrors_columns = false;
  bool mirrors_rows = false;                           // so are the rows
  bool flip = false;                                   // the last column first
  bool upside_down = false;                            // the last row first
  resample_filter filter = resample_filter::bilinear;  // of both axes

  // The job of a view of an image that is decoded whole.
  static resample_job of(const view_of_image& view, resample_filter filter);
};

// Turns the rows of a crop, as they are decoded, into rows of the output, each as soon as its last
// input is there. Rows that keep their size are copied: the filters give the same. Memory: two rows
// of the crop, and as many rows of the output as the filter is high; kept from image to image. One
// thread.
class resampler {
 public:
  // Prepares for one image, whose output goes to `out`: window.height x window.width x 3 bytes.
  void begin(const resample_job& job, std::uint8_t* out);
  // The first row of the source that the output needs, counted in the source.
  int first_row() const { return first_row_; }
  // The row after the last one that the output needs.
  int end_row() const { return end_row_; }
  // The first column of the source that the output needs.
  int first_column() const { return first_column_; }
  // The column after the last one that the output needs.
  int end_column() const { return end_column_; }
  // Bytes after a row's last pixel that must be readable.
  std::size_t readable_behind() const { return columns_.stride * 4; }
  // Whether the row added last must still stay as it is.
  bool holds_row() const { return waiting_ != nullptr; }
  // Adds the next row, from first_row() on: RGBX, from first_column() on, with readable_behind()
  // readable bytes after the last pixel. A row must stay as it is until the next one has been
  // added. The output is complete after the last row.
  void add_row(const std::uint8_t* rgbx);

 private:
  void copy_row(const std::uint8_t* rgbx);
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
  std::optional<int> copied_row_;          // the first output, where outputs are inputs
  int copied_column_ = 0;                  // after first_column_, of each such row
  const std::uint8_t* waiting_ = nullptr;  // a row that is narrowed together with the next one
  std::uint8_t* out_ = nullptr;
  std::vector<std::int16_t> ring_;  // of narrowed rows
  std::size_t ring_stride_ = 0;
  int ring_rows_ = 0;
  std::vector<const std::int16_t*> inputs_;  // of one output row
};

}  // namespace millrace
