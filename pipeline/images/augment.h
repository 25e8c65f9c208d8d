#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/random.h"
#include "pipeline/images/augment_ops.h"
#include "pipeline/images/view.h"

namespace millrace {

// Which policy chooses operations, with torchvision's ranges and defaults.
enum class augment_policy : std::uint8_t {
  none,
  autoaugment,     // Cubuk et al., "AutoAugment" (CVPR 2019): its policy for ImageNet
  randaugment,     // Cubuk et al., "RandAugment" (NeurIPS 2020)
  trivialaugment,  // Mueller and Hutter, "TrivialAugment" (ICCV 2021), wide ranges
};

// Changes to a training image after its crop and flip, in this order; all off by default. A field
// named "probability", or one that is only a number, is the fraction of images that are changed.
struct augment_options {
  augment_policy policy = augment_policy::none;
  int randaugment_ops = 2;
  int randaugment_magnitude = 9;  // of 30
  // torchvision's ColorJitter: factors in [1 - x, 1 + x], hue in [-x, x], in random order.
  struct color_jitter {
    double brightness = 0;
    double contrast = 0;
    double saturation = 0;
    double hue = 0;  // at most 0.5
    double probability = 1;
  } jitter = {};
  double gray = 0;
  double solarize = 0;
  double solarize_from = 128;
  struct gaussian_blur {
    double probability = 0;
    int size = 23;  // of the kernel in pixels, odd
    double least_sigma = 0.1;
    double most_sigma = 2;
  } blur = {};
  // torchvision's RandomErasing (Zhong et al., AAAI 2020).
  struct random_erasing {
    double probability = 0;
    double least_area = 0.02;  // of the image
    double most_area = 1.0 / 3;
    double least_aspect = 0.3;
    double most_aspect = 3.3;
    std::array<std::uint8_t, 3> colour = {124, 116, 104};  // ImageNet's mean
  } erasing = {};
};

// Whether any of them is on.
bool changes_pixels(const augment_options& options);
// Throws `failure` (usage) for values out of range.
void check(const augment_options& options);

// The changes to one image: a function of the options, the random numbers and the size.
struct augment_steps {
  std::vector<augment_step> steps = {};
  double blur_sigma = 0;  // 0: not blurred
  std::optional<pixel_box> erased = {};
};
augment_steps draw_steps(const augment_options& options, random_stream random, int width,
                         int height);

// Draws and applies. One thread; keeps its memory.
class augmenter {
 public:
  void apply(const augment_options& options, random_stream random, const rgb_pixels& pixels);

 private:
  op_applier ops_;
};

}  // namespace millrace
