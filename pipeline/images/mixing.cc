#include "pipeline/images/mixing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

#include "engine/base/check_option.h"
#include "engine/base/random.h"
#include "pipeline/images/augment_ops.h"

namespace millrace {
namespace {

double normal(random_stream& random) {
  const double radius = std::sqrt(-2 * std::log(1 - random.uniform()));
  return radius * std::cos(2 * std::numbers::pi * random.uniform());
}

// Source: Marsaglia and Tsang, "A simple method for generating gamma variables" (ACM TOMS 2000);
// shapes below 1 as in its last section.
double gamma_distributed(double shape, random_stream& random) {
  if (shape < 1) {
    const double power = std::pow(1 - random.uniform(), 1 / shape);
    return gamma_distributed(shape + 1, random) * power;
  }
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = normal(random);
    const double root = 1 + c * x;
    if (root <= 0) continue;
    const double v = root * root * root;
    if (std::log(1 - random.uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

double beta_distributed(double alpha, random_stream& random) {
  const double a = gamma_distributed(alpha, random);
  const double b = gamma_distributed(alpha, random);
  return a + b > 0 ? a / (a + b) : 0.5;
}

// The box to cut out, clipped to the image.
pixel_box cut_box(double share, int width, int height, random_stream& random) {
  const auto x = static_cast<int>(random.below(static_cast<std::uint32_t>(width)));
  const auto y = static_cast<int>(random.below(static_cast<std::uint32_t>(height)));
  const double half = 0.5 * std::sqrt(1 - share);
  const auto half_width = static_cast<int>(half * width);
  const auto half_height = static_cast<int>(half * height);
  const int left = std::max(0, x - half_width);
  const int top = std::max(0, y - half_height);
  return {left, top, std::min(width, x + half_width) - left,
          std::min(height, y + half_height) - top};
}

void weigh(std::span<std::uint8_t> image, const std::uint8_t* other, double share) {
  const auto of_image = static_cast<float>(share);
  const auto of_other = static_cast<float>(1 - share);
  for (std::size_t i = 0; i < image.size(); ++i) {
    const float mixed =
        of_image * static_cast<float>(image[i]) + of_other * static_cast<float>(other[i]);
    image[i] = static_cast<std::uint8_t>(mixed + 0.5F);
  }
}

void paste(std::span<std::uint8_t> image, const std::uint8_t* other, const pixel_box& box,
           int width) {
  for (int y = box.y; y < box.y + box.height; ++y) {
    const auto at = (static_cast<std::size_t>(y) * static_cast<std::size_t>(width) +
                     static_cast<std::size_t>(box.x)) *
                    3;
    std::copy_n(other + at, static_cast<std::size_t>(box.width) * 3, image.data() + at);
  }
}

}  // namespace

mix_images::mix_images(const mixing_options& options) : options_(options) {
  constexpr double most = 1e6;
  check_option("mixing_options.mixup", options.mixup, 0, most);
  check_option("mixing_options.cutmix", options.cutmix, 0, most);
}

host_batch mix_images::operator()(host_batch b) const {
  if (!b.encoded.empty()) {
    throw failure(error(errc::usage, "mix_images got a batch with encoded images")
                      .hint("mix batches on the device, or decode all images on the CPU: "
                            "decode_options.encoded_share = 0"));
  }
  const bool both = options_.mixup > 0 && options_.cutmix > 0;
  if (options_.mixup + options_.cutmix == 0 || b.size() == 0) return b;
  const origin& first = b.origins.front();
  random_stream random(options_.seed, purpose::mixing, static_cast<std::uint64_t>(first.epoch),
                       static_cast<std::uint64_t>(first.position));
  const bool cuts = both ? random.below(2) == 1 : options_.cutmix > 0;
  b.share = beta_distributed(cuts ? options_.cutmix : options_.mixup, random);
  pixel_box box;
  if (cuts) {
    box = cut_box(b.share, b.width, b.height, random);
    const double cut = static_cast<double>(box.width) * box.height;
    b.share = 1 - cut / (static_cast<double>(b.width) * b.height);
  }
  const std::size_t size = b.payload_bytes() / b.size();
  auto* pixels = reinterpret_cast<std::uint8_t*>(b.pixels->data);
  const auto image = [&](std::size_t i) { return std::span(pixels + i * size, size); };
  const std::vector<std::uint8_t> last(image(b.size() - 1).begin(), image(b.size() - 1).end());
  b.other_labels.resize(b.size());
  // Backwards, so that each image is mixed with one that is still unmixed.
  for (std::size_t i = b.size(); i-- > 0;) {
    const std::uint8_t* other = i == 0 ? last.data() : image(i - 1).data();
    b.other_labels[i] = b.labels[i == 0 ? b.size() - 1 : i - 1];
    if (cuts) {
      paste(image(i), other, box, b.width);
    } else {
      weigh(image(i), other, b.share);
    }
  }
  return b;
}

}  // namespace millrace
