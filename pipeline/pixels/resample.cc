#include "pipeline/pixels/resample.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

#include "pipeline/pixels/kernels.h"

namespace millrace {
namespace {

double sinc(double x) {
  if (x == 0) return 1;
  x *= std::numbers::pi;
  return std::sin(x) / x;
}

// How far a filter reaches on each side, in input pixels at full size.
double reach_of(resample_filter f) {
  switch (f) {
    case resample_filter::box:
      return 0.5;
    case resample_filter::bilinear:
      return 1;
    case resample_filter::bicubic:
      return 2;
    case resample_filter::lanczos:
      return 3;
  }
  return 1;
}

double value_of(resample_filter f, double x) {
  switch (f) {
    case resample_filter::box:
      return x > -0.5 && x <= 0.5 ? 1 : 0;
    case resample_filter::bilinear:
      return std::max(0.0, 1.0 - std::abs(x));
    case resample_filter::bicubic: {
      constexpr double a = -0.5;
      x = std::abs(x);
      if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
      if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
      return 0;
    }
    case resample_filter::lanczos:
      return x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0;
  }
  return 0;
}

// Rounds `exact`, which sums to 1, so that the rounded sum is exact: the largest weight absorbs the
// error.
void to_fixed(const double* exact, int count, std::int16_t* fixed) {
  constexpr std::int32_t one = 1 << kernels::weight_bits;
  std::int32_t sum = 0;
  int largest = 0;
  for (int k = 0; k < count; ++k) {
    const auto rounded = static_cast<std::int32_t>(std::floor(exact[k] * one + 0.5));
    fixed[k] = static_cast<std::int16_t>(rounded);
    sum += rounded;
    if (fixed[k] > fixed[largest]) largest = k;
  }
  fixed[largest] = static_cast<std::int16_t>(fixed[largest] + (one - sum));
}

}  // namespace

void filter_axis::assign(resample_filter filter, const inputs& in, int out_size, int out_first,
                         int out_count, bool reversed) {
  const double scale = in.size / out_size;
  const double stretch = std::max(scale, 1.0);
  const double reach = reach_of(filter) * stretch;
  const auto most = static_cast<std::size_t>(std::ceil(2 * reach));
  stride = (most + 3) / 4 * 4;
  const auto outputs = static_cast<std::size_t>(out_count);
  first.resize(outputs);
  count.resize(outputs);
  weight.assign(outputs * stride, 0);
  exact_.resize(most);
  const double begin = in.mirrored ? in.limit - in.from - in.size : in.from;
  for (int i = 0; i < out_count; ++i) {
    const int out = in.mirrored ? out_size - 1 - out_first - i : out_first + i;
    const double center = begin + (out + 0.5) * scale;
    const int from = std::max(0, static_cast<int>(center - reach + 0.5));
    const int to =
        std::min({in.limit, static_cast<int>(center + reach + 0.5), from + static_cast<int>(most)});
    double sum = 0;
    for (int x = from; x < to; ++x) {
      const double w = value_of(filter, (x - center + 0.5) / stretch);
      exact_[static_cast<std::size_t>(x - from)] = w;
      sum += w;
    }
    const double normal = 1 / sum;
    for (int k = 0; k < to - from; ++k) exact_[static_cast<std::size_t>(k)] *= normal;
    const auto at = static_cast<std::size_t>(reversed ? out_count - 1 - i : i);
    first[at] = in.mirrored ? in.limit - to : from;
    count[at] = to - from;
    std::int16_t* const fixed = weight.data() + at * stride;
    to_fixed(exact_.data(), to - from, fixed);
    if (in.mirrored) std::reverse(fixed, fixed + (to - from));
  }
}

std::optional<int> filter_axis::copied_from() const {
  constexpr std::int32_t one = 1 << kernels::weight_bits;
  std::optional<int> copied;
  for (std::size_t i = 0; i < first.size(); ++i) {
    const auto weights = std::span(weight).subspan(i * stride, static_cast<std::size_t>(count[i]));
    const auto whole = std::ranges::find(weights, one);
    if (whole == weights.end()) return std::nullopt;
    if (std::ranges::count(weights, 0) + 1 != std::ssize(weights)) return std::nullopt;
    const int input = first[i] + static_cast<int>(whole - weights.begin());
    if (!copied) copied = input;
    if (input != *copied + static_cast<int>(i)) return std::nullopt;
  }
  return copied;
}

resample_job resample_job::of(const view_of_image& view, resample_filter filter) {
  return {.source = view.crop,
          .width = static_cast<double>(view.crop.width),
          .height = static_cast<double>(view.crop.height),
          .scaled_width = view.scaled_width,
          .scaled_height = view.scaled_height,
          .window = view.window,
          .flip = view.flip,
          .filter = filter};
}

void resampler::begin(const resample_job& job, std::uint8_t* out) {
  job_ = job;
  columns_.assign(job.filter, {job.x, job.width, job.source.width, job.mirrors_columns},
                  job.scaled_width, job.window.x, job.window.width, job.flip);
  rows_.assign(job.filter, {job.y, job.height, job.source.height, job.mirrors_rows},
               job.scaled_height, job.window.y, job.window.height);
  first_row_ = rows_.first.front();
  end_row_ = rows_.first.back() + rows_.count.back();
  const std::size_t left = job.flip ? columns_.first.size() - 1 : 0;
  const std::size_t right = columns_.first.size() - 1 - left;
  first_column_ = columns_.first[left];
  end_column_ = columns_.first[right] + columns_.count[right];
  for (std::int32_t& x : columns_.first) x -= first_column_;
  next_row_ = first_row_;
  next_out_ = 0;
  waiting_ = nullptr;
  out_ = out;
  const auto column = columns_.copied_from();
  copied_row_ = column ? rows_.copied_from() : std::nullopt;
  if (copied_row_) {
    copied_column_ = *column;
    return;
  }
  // The rows of one output, and the one narrowed together with its last.
  ring_rows_ = *std::ranges::max_element(rows_.count) + 1;
  ring_stride_ = static_cast<std::size_t>(job.window.width) * 3 + kernels::writable_behind;
  const std::size_t needed = static_cast<std::size_t>(ring_rows_) * ring_stride_;
  if (ring_.size() < needed) ring_.resize(needed);
}

std::int16_t* resampler::narrowed(int row) {
  return ring_.data() + static_cast<std::size_t>(row % ring_rows_) * ring_stride_;
}

void resampler::copy_row(const std::uint8_t* rgbx) {
  const int at = next_row_ - *copied_row_;
  ++next_row_;
  if (at < 0 || at >= job_.window.height) return;  // of weight 0
  const int to = job_.upside_down ? job_.window.height - 1 - at : at;
  const auto width = static_cast<std::size_t>(job_.window.width);
  kernels::to_rgb(rgbx + static_cast<std::size_t>(copied_column_) * 4, width,
                  out_ + static_cast<std::size_t>(to) * width * 3);
}

void resampler::add_row(const std::uint8_t* rgbx) {
  if (copied_row_) {
    copy_row(rgbx);
    return;
  }
  const bool is_last = next_row_ + 1 == end_row_;
  if (waiting_ == nullptr && !is_last) {
    waiting_ = rgbx;
    ++next_row_;
    return;
  }
  const kernels::axis_weights axis{.first = columns_.first.data(),
                                   .weights = columns_.weight.data(),
                                   .quads = columns_.stride / 4,
                                   .outputs = columns_.first.size()};
  // A single last row is narrowed twice.
  const std::uint8_t* before = waiting_ != nullptr ? waiting_ : rgbx;
  std::int16_t* to = narrowed(next_row_);
  kernels::narrow_rows(before, rgbx, axis, waiting_ != nullptr ? narrowed(next_row_ - 1) : to, to);
  waiting_ = nullptr;
  ++next_row_;
  write_outputs();
}

// Writes the outputs whose inputs are complete.
void resampler::write_outputs() {
  const auto row_bytes = static_cast<std::size_t>(job_.window.width) * 3;
  for (; next_out_ < rows_.first.size(); ++next_out_) {
    const int first = rows_.first[next_out_];
    const int end = first + rows_.count[next_out_];
    if (end > next_row_) return;
    inputs_.clear();
    for (int row = first; row < end; ++row) inputs_.push_back(narrowed(row));
    if (inputs_.size() % 2 != 0) inputs_.push_back(inputs_.back());  // its weight is 0
    const std::size_t to = job_.upside_down ? rows_.first.size() - 1 - next_out_ : next_out_;
    kernels::blend_rows(inputs_, rows_.weight.data() + next_out_ * rows_.stride, row_bytes,
                        out_ + to * row_bytes);
  }
}

}  // namespace millrace
