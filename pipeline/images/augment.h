#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/base/random.h"
#include "pipeline/images/augment_ops.h"
#include "pipeline/pixels/view.h"

namespace millrace {

// The policy that chooses operations, with torchvision's ranges and defaults.
enum class augment_policy : std::uint8_t {
  none,            // no operations
  autoaugment,     // Cubuk et al., "AutoAugment" (CVPR 2019): its policy for ImageNet
  randaugment,     // Cubuk et al., "RandAugment" (NeurIPS 2020)
  trivialaugment,  // Mueller and Hutter, "TrivialAugment" (ICCV 2021), wide ranges
};
// The names of the policies, in the order of the enumerators.
inline constexpr auto augment_policy_names =
    std::to_array<std::string_view>({"none", "autoaugment", "randaugment", "trivialaugment"});

// Changes to a training image after its crop and flip, in the order of the fields; all off by
// default. A probability is the fraction of the images that are changed. check() has the ranges.
struct augment_options {
  augment_policy policy = augment_policy::none;          // draws operations for each image
  static constexpr int most_randaugment_ops = 16;        // of randaugment_ops
  static constexpr int most_randaugment_magnitude = 30;  // of randaugment_magnitude
  int randaugment_ops = 2;        // operations on an image, with `randaugment`; 0 to 16
  int randaugment_magnitude = 9;  // their strength, 0 to 30
  // torchvision's ColorJitter: each factor in [1 - x, 1 + x], hue in [-x, x], in random order.
  struct color_jitter {
    double brightness = 0;     // x of the factor; so for the next two
    double contrast = 0;       // 0: unchanged
    double saturation = 0;     // 0: unchanged
    double hue = 0;            // turns of the colour wheel, at most 0.5
    double probability = 1;    // fraction of the images
  } jitter = {};               // brightness, contrast, saturation and hue
  double gray = 0;             // fraction of the images made gray
  double solarize = 0;         // fraction of the images solarised
  double solarize_from = 128;  // values from here on are inverted; 0 to 255
  // torchvision's GaussianBlur.
  struct gaussian_blur {
    double probability = 0;    // fraction of the images
    int size = 23;             // of the kernel in pixels, odd, at most 255; cut for small images
    double least_sigma = 0.1;  // standard deviation in pixels, drawn uniformly
    double most_sigma = 2;     // up to this
  } blur = {};                 // off unless its probability is set
  // torchvision's RandomErasing (Zhong et al., AAAI 2020).
  struct random_erasing {
    double probability = 0;                               // fraction of the images
    double least_area = 0.02;                             // of the box, as a fraction of the image
    double most_area = 1.0 / 3;                           // up to this
    double least_aspect = 0.3;                            // height / width of the box
    double most_aspect = 3.3;                             // up to this
    std::array<std::uint8_t, 3> color = {124, 116, 104};  // RGB; ImageNet's mean
  } erasing = {};                                         // off unless its probability is set
};

// An option that is the fraction of the images to change. Programs offer all of them: as a flag of
// millrace-train, and as an argument of Python's.
struct change_share {
  const char* flag = nullptr;     // "--gray"
  const char* option = nullptr;   // "augment_options.gray", by which messages name it
  double* share = nullptr;        // the option, 0 to 1
  const char* meaning = nullptr;  // one clause: "share of the images to make gray"

  // "gray".
  std::string_view name() const { return std::string_view(flag).substr(2); }
};
// Those of `options`, which must outlive them.
std::vector<change_share> shares_of(augment_options& options);

// Whether any change is on.
bool changes_pixels(const augment_options& options);
// Throws `failure` (usage) for values out of range. decode_jpeg() calls it.
void check(const augment_options& options);

// The changes to one image, in this order.
struct augment_steps {
  std::vector<augment_step> steps = {};  // of the policy, the jitter, gray and solarize
  double blur_sigma = 0;                 // in pixels; 0: not blurred
  std::optional<pixel_box> erased = {};  // the box; nullopt: none
};
// Draws the changes: a function of the options, the random numbers and the size in pixels.
augment_steps draw_steps(const augment_options& options, random_stream random, int width,
                         int height);

// Draws changes and applies them. One thread; keeps its memory from image to image.
class augmenter {
 public:
  // Changes `pixels` in place. The options must pass check().
  void apply(const augment_options& options, random_stream random, const rgb_pixels& pixels);

 private:
  op_applier ops_;
};

}  // namespace millrace
