#include "pipeline/images/augment_ops.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace millrace {
namespace {

using table = std::array<std::uint8_t, 256>;

std::uint8_t cut(float x) {
  return static_cast<std::uint8_t>(std::clamp(x, 0.0F, 255.0F));
}

std::uint8_t rounded(float x) {
  return cut(std::nearbyint(x));
}

// factor * a + (1 - factor) * b, clamped to a byte. Factors above 1 extrapolate beyond a.
struct blend {
  explicit blend(double factor)
      : of_a(static_cast<float>(factor)), of_b(static_cast<float>(1 - factor)) {}
  std::uint8_t operator()(float a, float b) const { return cut(of_a * a + of_b * b); }
  float of_a;
  float of_b;
};

// Luma of ITU-R BT.601, with torchvision's digits.
std::uint8_t gray_of(const std::uint8_t* p) {
  constexpr float red = 0.2989F;
  constexpr float green = 0.587F;
  constexpr float blue = 0.114F;
  return static_cast<std::uint8_t>(red * static_cast<float>(p[0]) +
                                   green * static_cast<float>(p[1]) +
                                   blue * static_cast<float>(p[2]));
}

template <class F>
table table_of(F&& f) {
  table out{};
  for (std::size_t v = 0; v < out.size(); ++v) out[v] = f(v);
  return out;
}

void look_up(const table& values, const rgb_pixels& pixels) {
  for (std::size_t i = 0; i < pixels.count() * 3; ++i) pixels.data[i] = values[pixels.data[i]];
}

using counts = std::array<std::uint32_t, 256>;

std::array<counts, 3> histograms(const rgb_pixels& pixels) {
  std::array<counts, 3> out{};
  for (std::size_t i = 0; i < pixels.count() * 3; i += 3) {
    for (std::size_t c = 0; c < 3; ++c) ++out[c][pixels.data[i + c]];
  }
  return out;
}

// Maps each colour through a table made from its histogram.
template <class F>
void look_up_by_histogram(const rgb_pixels& pixels, F&& table_for) {
  std::array<table, 3> values{};
  const auto found = histograms(pixels);
  for (std::size_t c = 0; c < 3; ++c) values[c] = table_for(found[c]);
  for (std::size_t i = 0; i < pixels.count() * 3; i += 3) {
    for (std::size_t c = 0; c < 3; ++c) pixels.data[i + c] = values[c][pixels.data[i + c]];
  }
}

table stretched(const counts& found) {
  std::size_t least = 0;
  std::size_t most = 255;
  while (least < 255 && found[least] == 0) ++least;
  while (most > 0 && found[most] == 0) --most;
  const bool is_flat = least >= most;
  const float from = is_flat ? 0.0F : static_cast<float>(least);
  const float scale = is_flat ? 1.0F : 255.0F / static_cast<float>(most - least);
  return table_of([&](std::size_t v) { return cut((static_cast<float>(v) - from) * scale); });
}

table equalized(const counts& found) {
  std::uint64_t all = 0;
  std::uint64_t last = 0;  // pixels with the largest value
  for (const std::uint32_t n : found) {
    all += n;
    if (n != 0) last = n;
  }
  const std::uint64_t step = (all - last) / 255;
  std::uint64_t below = 0;
  return table_of([&](std::size_t v) {
    if (step == 0) return static_cast<std::uint8_t>(v);
    const std::uint64_t value = v == 0 ? 0 : (below + step / 2) / step;
    below += found[v];
    return static_cast<std::uint8_t>(std::min<std::uint64_t>(value, 255));
  });
}

void change_contrast(double factor, const rgb_pixels& pixels) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < pixels.count(); ++i) sum += gray_of(pixels.data + i * 3);
  const auto mean = static_cast<float>(
      static_cast<double>(sum) / static_cast<double>(std::max<std::size_t>(1, pixels.count())));
  const blend b(factor);
  look_up(table_of([&](std::size_t v) { return b(static_cast<float>(v), mean); }), pixels);
}

void change_saturation(double factor, const rgb_pixels& pixels) {
  const blend b(factor);
  for (std::size_t i = 0; i < pixels.count() * 3; i += 3) {
    std::uint8_t* p = pixels.data + i;
    const float gray = gray_of(p);
    for (std::size_t c = 0; c < 3; ++c) p[c] = b(p[c], gray);
  }
}

void to_gray(const rgb_pixels& pixels) {
  for (std::size_t i = 0; i < pixels.count() * 3; i += 3) {
    std::fill_n(pixels.data + i, 3, gray_of(pixels.data + i));
  }
}

// Source of the conversions: Smith, "Color gamut transform pairs" (SIGGRAPH 1978).
void turn_hue(float by, std::uint8_t* p) {
  const float r = static_cast<float>(p[0]) / 255.0F;
  const float g = static_cast<float>(p[1]) / 255.0F;
  const float b = static_cast<float>(p[2]) / 255.0F;
  const float most = std::max({r, g, b});
  const float least = std::min({r, g, b});
  const float range = most - least;
  const float saturation = range == 0 ? 0 : range / most;
  float hue = 0;
  if (range != 0) {
    const float rc = (most - r) / range;
    const float gc = (most - g) / range;
    const float bc = (most - b) / range;
    hue = most == r ? bc - gc : most == g ? 2.0F + rc - bc : 4.0F + gc - rc;
  }
  hue = std::fmod(hue / 6.0F + 1.0F, 1.0F) + by;
  hue -= std::floor(hue);
  const float sector = std::floor(hue * 6.0F);
  const float within = hue * 6.0F - sector;
  const float low = most * (1.0F - saturation);
  const float falling = most * (1.0F - saturation * within);
  const float rising = most * (1.0F - saturation * (1.0F - within));
  const std::array<std::array<float, 3>, 6> colors = {{{most, rising, low},
                                                       {falling, most, low},
                                                       {low, most, rising},
                                                       {low, falling, most},
                                                       {rising, low, most},
                                                       {most, low, falling}}};
  const auto& color = colors[static_cast<std::size_t>(sector) % 6];
  constexpr float just_below_256 = 255.999F;
  for (std::size_t c = 0; c < 3; ++c) p[c] = cut(color[c] * just_below_256);
}

// Index `i` into a row of `size` elements that is reflected at its ends. The end elements are not
// repeated.
std::size_t reflected(int i, int size) {
  if (i < 0) i = -i;
  if (i >= size) i = 2 * (size - 1) - i;
  return static_cast<std::size_t>(i);
}

}  // namespace

// Each output pixel is the input pixel nearest to where the matrix maps it. Coordinates are
// relative to the image's centre.
void op_applier::move(const std::array<double, 6>& m, const rgb_pixels& pixels) {
  copy_.assign(pixels.data, pixels.data + pixels.count() * 3);
  const int width = pixels.width;
  const int height = pixels.height;
  const double x_center = width / 2.0 - 0.5;
  const double y_center = height / 2.0 - 0.5;
  std::uint8_t* to = pixels.data;
  for (int y = 0; y < height; ++y) {
    const double yc = y - y_center;
    for (int x = 0; x < width; ++x, to += 3) {
      const double xc = x - x_center;
      const double from_x = std::nearbyint(m[0] * xc + m[1] * yc + m[2] + x_center);
      const double from_y = std::nearbyint(m[3] * xc + m[4] * yc + m[5] + y_center);
      if (from_x < 0 || from_y < 0 || from_x >= width || from_y >= height) {
        std::fill_n(to, 3, std::uint8_t{0});
      } else {
        const auto at = static_cast<std::size_t>(from_y) * static_cast<std::size_t>(width) +
                        static_cast<std::size_t>(from_x);
        std::copy_n(copy_.data() + at * 3, 3, to);
      }
    }
  }
}

// Leaves the border's pixels unchanged.
void op_applier::sharpen(double factor, const rgb_pixels& pixels) {
  if (pixels.width <= 2 || pixels.height <= 2) return;
  copy_.assign(pixels.data, pixels.data + pixels.count() * 3);
  const blend b(factor);
  const std::size_t stride = static_cast<std::size_t>(pixels.width) * 3;
  const auto rows = static_cast<std::size_t>(pixels.height);
  for (std::size_t y = 1; y + 1 < rows; ++y) {
    const std::uint8_t* above = copy_.data() + (y - 1) * stride;
    const std::uint8_t* here = above + stride;
    const std::uint8_t* below = here + stride;
    std::uint8_t* to = pixels.data + y * stride;
    for (std::size_t i = 3; i + 3 < stride; ++i) {
      const unsigned around = 0U + above[i - 3] + above[i] + above[i + 3] + here[i - 3] +
                              here[i + 3] + below[i - 3] + below[i] + below[i + 3];
      const unsigned smooth = (around + 5U * here[i] + 6) / 13;
      to[i] = b(here[i], static_cast<float>(smooth));
    }
  }
}

void op_applier::blur(int size, double sigma, const rgb_pixels& pixels) {
  const int half = size / 2;
  weights_.resize(static_cast<std::size_t>(size));
  float sum = 0;
  for (int k = 0; k < size; ++k) {
    const double x = (k - half) / sigma;
    weights_[static_cast<std::size_t>(k)] = static_cast<float>(std::exp(-0.5 * x * x));
    sum += weights_[static_cast<std::size_t>(k)];
  }
  for (float& w : weights_) w /= sum;
  const auto width = static_cast<std::size_t>(pixels.width);
  const std::size_t stride = width * 3;
  const auto rows = static_cast<std::size_t>(pixels.height);
  blurred_.resize(stride * rows);
  padded_.resize((width + static_cast<std::size_t>(size)) * 3);
  for (std::size_t y = 0; y < rows; ++y) {
    const std::uint8_t* from = pixels.data + y * stride;
    for (int x = -half; x < pixels.width + half; ++x) {
      const std::size_t in = reflected(x, pixels.width) * 3;
      for (std::size_t c = 0; c < 3; ++c) {
        padded_[static_cast<std::size_t>(x + half) * 3 + c] = from[in + c];
      }
    }
    float* to = blurred_.data() + y * stride;
    std::fill_n(to, stride, 0.0F);
    for (std::size_t k = 0; k < weights_.size(); ++k) {
      const float* in = padded_.data() + k * 3;
      for (std::size_t i = 0; i < stride; ++i) to[i] += weights_[k] * in[i];
    }
  }
  padded_.resize(std::max(padded_.size(), stride));
  for (int y = 0; y < pixels.height; ++y) {
    std::fill_n(padded_.data(), stride, 0.0F);
    for (int k = 0; k < size; ++k) {
      const float* in = blurred_.data() + reflected(y + k - half, pixels.height) * stride;
      const float weight = weights_[static_cast<std::size_t>(k)];
      for (std::size_t i = 0; i < stride; ++i) padded_[i] += weight * in[i];
    }
    std::uint8_t* to = pixels.data + static_cast<std::size_t>(y) * stride;
    for (std::size_t i = 0; i < stride; ++i) to[i] = rounded(padded_[i]);
  }
}

void op_applier::apply(const augment_step& step, const rgb_pixels& pixels) {
  const double a = step.amount;
  const double half_width = pixels.width / 2.0;
  const double half_height = pixels.height / 2.0;
  switch (step.op) {
    case augment_op::identity:
      return;
    case augment_op::shear_x:  // about the upper left corner, as all shears of the policies
      return move({1, a, a * half_height, 0, 1, 0}, pixels);
    case augment_op::shear_y:
      return move({1, 0, 0, a, 1, a * half_width}, pixels);
    case augment_op::translate_x:
      return move({1, 0, -std::trunc(a), 0, 1, 0}, pixels);
    case augment_op::translate_y:
      return move({1, 0, 0, 0, 1, -std::trunc(a)}, pixels);
    case augment_op::rotate: {
      const double angle = a * std::numbers::pi / 180;
      return move({std::cos(angle), -std::sin(angle), 0, std::sin(angle), std::cos(angle), 0},
                  pixels);
    }
    case augment_op::brightness: {
      const blend b(a);
      return look_up(table_of([&](std::size_t v) { return b(static_cast<float>(v), 0); }), pixels);
    }
    case augment_op::color:
      return change_saturation(a, pixels);
    case augment_op::contrast:
      return change_contrast(a, pixels);
    case augment_op::sharpness:
      return sharpen(a, pixels);
    case augment_op::posterize: {
      const unsigned mask = 0xFFU << (8 - static_cast<unsigned>(std::clamp(a, 0.0, 8.0)));
      return look_up(table_of([&](std::size_t v) { return static_cast<std::uint8_t>(v & mask); }),
                     pixels);
    }
    case augment_op::solarize:
      return look_up(table_of([&](std::size_t v) {
                       const bool turns = static_cast<double>(v) >= a;
                       return static_cast<std::uint8_t>(turns ? 255 - v : v);
                     }),
                     pixels);
    case augment_op::autocontrast:
      return look_up_by_histogram(pixels, stretched);
    case augment_op::equalize:
      return look_up_by_histogram(pixels, equalized);
    case augment_op::invert:
      return look_up(table_of([](std::size_t v) { return static_cast<std::uint8_t>(255 - v); }),
                     pixels);
    case augment_op::hue:
      for (std::size_t i = 0; i < pixels.count(); ++i) {
        turn_hue(static_cast<float>(a), pixels.data + i * 3);
      }
      return;
    case augment_op::grayscale:
      return to_gray(pixels);
  }
}

void erase(const pixel_box& box, const std::array<std::uint8_t, 3>& color,
           const rgb_pixels& pixels) {
  for (int y = box.y; y < box.y + box.height; ++y) {
    const auto at = static_cast<std::size_t>(y) * static_cast<std::size_t>(pixels.width) +
                    static_cast<std::size_t>(box.x);
    std::uint8_t* to = pixels.data + at * 3;
    for (int x = 0; x < box.width; ++x, to += 3) std::ranges::copy(color, to);
  }
}

}  // namespace millrace
