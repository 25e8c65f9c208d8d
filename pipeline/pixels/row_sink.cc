#include "pipeline/pixels/row_sink.h"

#include <algorithm>

namespace millrace {
namespace {

// Converts a view of the oriented image to one of the stored image, of `width` x `height`. If
// orientation transposes the image, the output is transposed instead.
resample_job stored_job(const view_of_image& v, resample_filter filter, exif_orientation turned,
                        int width, int height) {
  resample_job job = resample_job::of(v, filter);
  const bool transposed = turned.is_transposed();
  const auto swapped = [&](pixel_box& box) {
    if (!transposed) return;
    std::swap(box.x, box.y);
    std::swap(box.width, box.height);
  };
  swapped(job.source);
  swapped(job.window);
  if (transposed) {
    std::swap(job.width, job.height);
    std::swap(job.scaled_width, job.scaled_height);
  }
  if (turned.mirrors_columns()) {
    job.source.x = width - job.source.x - job.source.width;
    job.window.x = job.scaled_width - job.window.x - job.window.width;
  }
  if (turned.mirrors_rows()) {
    job.source.y = height - job.source.y - job.source.height;
    job.window.y = job.scaled_height - job.window.y - job.window.height;
  }
  job.mirrors_columns = turned.mirrors_columns();
  job.mirrors_rows = turned.mirrors_rows();
  job.flip = turned.mirrors_columns() != (!transposed && v.flip);
  job.upside_down = turned.mirrors_rows() != (transposed && v.flip);
  return job;
}

// The largest reduction by the decoder that still leaves the image to be scaled down.
int scale_below(const resample_job& job) {
  const double across = job.width / job.scaled_width;
  const double down = job.height / job.scaled_height;
  for (const int scale : {8, 4, 2}) {
    if (std::min(across, down) >= scale) return scale;
  }
  return 1;
}

// Adapts the job to an image decoded at 1 / scale of its size.
void decode_smaller(resample_job& job, int scale, int width, int height) {
  const auto axis = [&](int& from, int& size, double& at, double& extent, int whole) {
    const int limit = (whole + scale - 1) / scale;
    const int first = from / scale;
    const int end = std::min(limit, (from + size + scale - 1) / scale);
    at = static_cast<double>(from) / scale - first;
    extent = static_cast<double>(size) / scale;
    from = first;
    size = std::max(1, end - first);
  };
  axis(job.source.x, job.source.width, job.x, job.width, width);
  axis(job.source.y, job.source.height, job.y, job.height, height);
}

void transpose(const std::uint8_t* from, int width, int height, std::uint8_t* to) {
  const auto w = static_cast<std::size_t>(width);
  const auto h = static_cast<std::size_t>(height);
  for (std::size_t y = 0; y < h; ++y) {
    for (std::size_t x = 0; x < w; ++x) {
      std::copy_n(from + (y * w + x) * 3, 3, to + (x * h + y) * 3);
    }
  }
}

}  // namespace

void row_sink::begin(const view_chooser& choose, const pixel_place& place,
                     const image_options& options, exif_orientation turned, int width, int height,
                     decoder_scales scales) {
  transposed_ = turned.is_transposed();
  const view_of_image view = transposed_ ? choose(height, width) : choose(width, height);
  out_ = place(view);
  job_ = stored_job(view, options.filter, turned, width, height);
  scale_ = options.fast && scales == decoder_scales::yes ? scale_below(job_) : 1;
  if (scale_ > 1) decode_smaller(job_, scale_, width, height);
  if (transposed_) turned_.resize(out_.size());
  resample_.begin(job_, transposed_ ? turned_.data() : out_.data());
}

pixel_box row_sink::needed() const {
  return {.x = job_.source.x + resample_.first_column(),
          .y = job_.source.y + resample_.first_row(),
          .width = resample_.end_column() - resample_.first_column(),
          .height = resample_.end_row() - resample_.first_row()};
}

void row_sink::finish() {
  if (transposed_) transpose(turned_.data(), job_.window.width, job_.window.height, out_.data());
}

}  // namespace millrace
