#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "pipeline/pixels/view.h"

namespace millrace {

// A view of width x height RGB pixels, three bytes each, row by row.
struct rgb_pixels {
  std::uint8_t* data = nullptr;  // not owned
  int width = 0;                 // in pixels
  int height = 0;                // in pixels

  // The number of pixels.
  std::size_t count() const {
    return static_cast<std::size_t>(width) * static_cast<std::size_t>(height);
  }
};

// One change of an image, by the name that AutoAugment's authors gave it; with the meaning of
// augment_step::amount.
enum class augment_op : std::uint8_t {
  identity,
  shear_x,       // pixels to the side for each pixel down
  shear_y,       // pixels down for each pixel to the side
  translate_x,   // pixels, rounded towards zero
  translate_y,   // pixels, rounded towards zero
  rotate,        // degrees, counter-clockwise
  brightness,    // factor: 1 leaves the image as it is, 0 makes it black
  color,         // factor: 0 makes it gray
  contrast,      // factor: 0 makes it the mean gray
  sharpness,     // factor: 0 smoothes it
  posterize,     // bits that are kept, rounded towards zero
  solarize,      // values from here on are inverted
  autocontrast,  // unused, as for the next two
  equalize,
  invert,
  hue,        // turns of the colour wheel, -0.5 to 0.5
  grayscale,  // the same gray in all three colours
};

// An operation and its strength.
struct augment_step {
  augment_op op = augment_op::identity;  // the operation
  double amount = 0;                     // see augment_op
};

// Applies steps in place, as torchvision.transforms.functional does to byte tensors: moved pixels
// are taken from the nearest neighbour, or are 0 if there is none. One thread; keeps its memory.
class op_applier {
 public:
  // Changes `pixels` in place.
  void apply(const augment_step& step, const rgb_pixels& pixels);
  // Blurs by a kernel `size` (odd) pixels wide and high. Borders are reflected: both sides of the
  // image must be longer than half of `size`.
  void blur(int size, double sigma, const rgb_pixels& pixels);

 private:
  void move(const std::array<double, 6>& matrix, const rgb_pixels& pixels);
  void sharpen(double factor, const rgb_pixels& pixels);

  std::vector<std::uint8_t> copy_;
  std::vector<float> blurred_;
  std::vector<float> weights_;
  std::vector<float> padded_;
};

// Sets every pixel of the box, which must lie within the image, to `color`.
void erase(const pixel_box& box, const std::array<std::uint8_t, 3>& color,
           const rgb_pixels& pixels);

}  // namespace millrace
