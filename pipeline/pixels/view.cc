#include "pipeline/pixels/view.h"

#include <algorithm>
#include <cmath>

namespace millrace {
namespace {

view_of_image whole_output(pixel_box crop, int size, bool flip) {
  return {crop, size, size, {0, 0, size, size}, flip};
}

// Python's round(): halves to even. torchvision uses it throughout.
int rounded(double x) {
  return static_cast<int>(std::nearbyint(x));
}

pixel_box largest_center_crop(int width, int height, const crop_options& o) {
  const double aspect = static_cast<double>(width) / height;
  int w = width;
  int h = height;
  if (aspect < o.least_aspect) {
    h = rounded(width / o.least_aspect);
  } else if (aspect > o.most_aspect) {
    w = rounded(height * o.most_aspect);
  }
  w = std::clamp(w, 1, width);
  h = std::clamp(h, 1, height);
  return {(width - w) / 2, (height - h) / 2, w, h};
}

}  // namespace

view_of_image whole_image(int width, int height, int shorter) {
  const int least = std::min(width, height);
  const bool scales = shorter > 0 && least > shorter;
  const auto scaled = [&](int side) {
    if (!scales) return side;
    return side == least ? shorter
                         : std::max(1, static_cast<int>(std::lround(
                                           side * (static_cast<double>(shorter) / least))));
  };
  const pixel_box window{0, 0, scaled(width), scaled(height)};
  return {{0, 0, width, height}, window.width, window.height, window, false};
}

view_of_image random_resized_crop(int width, int height, int size, const crop_options& options,
                                  random_stream random) {
  const bool flip = random.uniform() < options.flip;
  const double area = static_cast<double>(width) * height;
  const double least = std::log(options.least_aspect);
  const double most = std::log(options.most_aspect);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double target = area * random.uniform(options.least_area, options.most_area);
    const double aspect = std::exp(random.uniform(least, most));
    const int w = rounded(std::sqrt(target * aspect));
    const int h = rounded(std::sqrt(target / aspect));
    if (w <= 0 || h <= 0 || w > width || h > height) continue;
    const auto y = static_cast<int>(random.below(static_cast<std::uint32_t>(height - h + 1)));
    const auto x = static_cast<int>(random.below(static_cast<std::uint32_t>(width - w + 1)));
    return whole_output({x, y, w, h}, size, flip);
  }
  return whole_output(largest_center_crop(width, height, options), size, flip);
}

view_of_image resize_center_crop(int width, int height, int resize, int size) {
  const bool landscape = width >= height;
  // Reached only by images of one or a few pixels across.
  constexpr double longest = 1 << 30;
  const auto longer = static_cast<int>(std::min(
      longest, static_cast<double>(resize) * std::max(width, height) / std::min(width, height)));
  const int w = landscape ? longer : resize;
  const int h = landscape ? resize : longer;
  const pixel_box window{rounded((w - size) / 2.0), rounded((h - size) / 2.0), size, size};
  return {{0, 0, width, height}, w, h, window, false};
}

}  // namespace millrace
