#include "pipeline/resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace millrace {
namespace {

constexpr int bits = filter_axis::precision_bits;
constexpr std::int32_t half = 1 << (bits - 1);

std::uint8_t to_byte(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> bits, 0, 255));
}

double triangle(double x) {
  return std::max(0.0, 1.0 - std::abs(x));
}

// Four 32-bit lanes: one RGBX pixel.
using int4 = std::int32_t __attribute__((ext_vector_type(4)));
using byte4 = std::uint8_t __attribute__((ext_vector_type(4)));

int4 load_pixel(const std::uint8_t* rgbx) {
  byte4 pixel;
  std::memcpy(&pixel, rgbx, sizeof pixel);
  return __builtin_convertvector(pixel, int4);
}

// Compiled for AVX2 as well, and chosen at run time: the results are integers, so equal.
#if defined(__x86_64__) && !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer)
#define MILLRACE_VECTOR_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define MILLRACE_VECTOR_CLONES
#endif

// One row of a crop (RGBX) scaled in width (RGB).
MILLRACE_VECTOR_CLONES
void narrow_row(const filter_axis& columns, bool flip, const std::uint8_t* rgbx,
                std::uint8_t* row) {
  const std::size_t width = columns.first.size();
  for (std::size_t i = 0; i < width; ++i) {
    const std::uint8_t* from = rgbx + static_cast<std::size_t>(columns.first[i]) * 4;
    const std::int32_t* w = columns.weight.data() + i * static_cast<std::size_t>(columns.taps);
    const auto taps = static_cast<std::size_t>(columns.count[i]);
    int4 sum = {half, half, half, half};
    for (std::size_t k = 0; k < taps; ++k) sum += load_pixel(from + k * 4) * w[k];
    std::uint8_t* to = row + (flip ? width - 1 - i : i) * 3;
    for (int c = 0; c < 3; ++c) to[c] = to_byte(sum[c]);
  }
}

// `taps` rows of `size` bytes, one behind the other, weighted and summed.
MILLRACE_VECTOR_CLONES
void blend_rows(const std::uint8_t* rows, std::size_t size, const std::int32_t* weights,
                std::size_t taps, std::int32_t* sums, std::uint8_t* out) {
  for (std::size_t i = 0; i < size; ++i) sums[i] = half;
  for (std::size_t k = 0; k < taps; ++k) {
    const std::uint8_t* from = rows + k * size;
    for (std::size_t i = 0; i < size; ++i) sums[i] += from[i] * weights[k];
  }
  for (std::size_t i = 0; i < size; ++i) out[i] = to_byte(sums[i]);
}

}  // namespace

void filter_axis::assign(int in_size, int out_size, int out_first, int out_count) {
  const double scale = static_cast<double>(in_size) / out_size;
  const double stretch = std::max(scale, 1.0);
  const double support = stretch;  // the triangle reaches 1 on each side
  taps = static_cast<int>(std::ceil(support)) * 2 + 1;
  first.resize(static_cast<std::size_t>(out_count));
  count.resize(static_cast<std::size_t>(out_count));
  weight.assign(static_cast<std::size_t>(out_count) * static_cast<std::size_t>(taps), 0);
  std::vector<double> w(static_cast<std::size_t>(taps));
  for (int i = 0; i < out_count; ++i) {
    const double center = (out_first + i + 0.5) * scale;
    const int from = std::max(0, static_cast<int>(center - support + 0.5));
    const int to = std::min(in_size, static_cast<int>(center + support + 0.5));
    double sum = 0;
    for (int x = from; x < to; ++x) {
      w[static_cast<std::size_t>(x - from)] = triangle((x - center + 0.5) / stretch);
      sum += w[static_cast<std::size_t>(x - from)];
    }
    const auto at = static_cast<std::size_t>(i);
    first[at] = from;
    count[at] = to - from;
    std::int32_t* fixed = weight.data() + at * static_cast<std::size_t>(taps);
    for (int k = 0; k < to - from; ++k) {
      const double normal = sum > 0 ? w[static_cast<std::size_t>(k)] / sum : 0;
      fixed[k] = static_cast<std::int32_t>(normal * (1 << bits) + 0.5);
    }
  }
}

void resampler::begin(const view_of_image& view) {
  view_ = view;
  columns_.assign(view.crop.width, view.scaled_width, view.window.x, view.window.width);
  rows_.assign(view.crop.height, view.scaled_height, view.window.y, view.window.height);
  first_row_ = rows_.first.front();
  end_row_ = rows_.first.back() + rows_.count.back();
  added_ = 0;
  const auto row_bytes = static_cast<std::size_t>(view.window.width) * 3;
  const auto needed = static_cast<std::size_t>(end_row_ - first_row_) * row_bytes;
  if (narrowed_.size() < needed + 1) narrowed_.resize(needed + 1);
  sums_.resize(row_bytes);
}

void resampler::add_row(const std::uint8_t* rgbx) {
  const auto row_bytes = static_cast<std::size_t>(view_.window.width) * 3;
  narrow_row(columns_, view_.flip, rgbx,
             narrowed_.data() + static_cast<std::size_t>(added_++) * row_bytes);
}

void resampler::finish(std::uint8_t* out) {
  const auto row_bytes = static_cast<std::size_t>(view_.window.width) * 3;
  for (std::size_t y = 0; y < rows_.first.size(); ++y) {
    const auto first = static_cast<std::size_t>(rows_.first[y] - first_row_);
    blend_rows(narrowed_.data() + first * row_bytes, row_bytes,
               rows_.weight.data() + y * static_cast<std::size_t>(rows_.taps),
               static_cast<std::size_t>(rows_.count[y]), sums_.data(), out + y * row_bytes);
  }
}

}  // namespace millrace
