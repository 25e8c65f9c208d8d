#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "pipeline/images/view.h"

namespace millrace {

// width x height RGB pixels, three bytes each, row by row.
struct rgb_pixels {
  std::uint8_t* data = nullptr;
  int width = 0;
  int height = 0;

  std::size_t count() const {
    return static_cast<std::size_t>(width) * static_cast<std::size_t>(height);
  }
};

// One change of an image, by the name that AutoAugment's authors gave it. What `amount` is:
enum class augment_op : std::uint8_t {
  identity,
  shear_x,  // pixels sideways for each pixel down
  shear_y,
  translate_x,  // pixels, towards zero
  translate_y,
  rotate,      // degrees, counter-clockwise
  brightness,  // 1 leaves the image as it is, 0 is black; and so for the three below
  color,       // 0 is gray
  contrast,
  sharpness,
  posterize,  // bits that are kept, towards zero
  solarize,   // values from here on are inverted
  autocontrast,
  equalize,
  invert,
  hue,        // turns of the colour wheel, -0.5 to 0.5
  grayscale,  // the same gray in all three colours
};

struct augment_step {
  augment_op op = augment_op::identity;
  double amount = 0;
};

// Applies steps in place, as torchvision.transforms.functional does to tensors of bytes, moved
// pixels by their nearest neighbour, 0 where none is. One thread; keeps its memory.
class op_applier {
 public:
  void apply(const augment_step& step, const rgb_pixels& pixels);
  // `size` (odd) pixels wide and high, reflected at the borders, which must be wider than half of
  // that.
  void blur(int size, double sigma, const rgb_pixels& pixels);

 private:
  void move(const std::array<double, 6>& matrix, const rgb_pixels& pixels);
  void sharpen(double factor, const rgb_pixels& pixels);

  std::vector<std::uint8_t> copy_;
  std::vector<float> blurred_;
  std::vector<float> weights_;
  std::vector<float> padded_;
};

// Every pixel of the box becomes `colour`.
void erase(const pixel_box& box, const std::array<std::uint8_t, 3>& colour,
           const rgb_pixels& pixels);

}  // namespace millrace
