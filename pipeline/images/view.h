#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/random.h"

namespace millrace {

// A rectangle of pixels.
struct pixel_box {
  int x = 0;
  int y = 0;
  int width = 0;
  int height = 0;
  bool operator==(const pixel_box&) const = default;
};

// The part of an image that becomes the output, and how: `crop` of the image is scaled to
// `scaled_width` x `scaled_height`, of which `window` is kept, mirrored if `flip`.
struct view_of_image {
  pixel_box crop;
  int scaled_width = 0;
  int scaled_height = 0;
  pixel_box window;
  bool flip = false;
};

// The bytes of its output, RGB.
inline std::size_t output_bytes(const view_of_image& v) {
  return static_cast<std::size_t>(v.window.width) * static_cast<std::size_t>(v.window.height) * 3;
}

// All of an image of that size; where its shorter side is longer than `shorter` (and that is not
// 0), made smaller until it is as long.
view_of_image whole_image(int width, int height, int shorter = 0);

struct crop_options {
  double least_area = 0.08;  // of the image
  double most_area = 1.0;
  double least_aspect = 3.0 / 4;  // width / height
  double most_aspect = 4.0 / 3;
  double flip = 0.5;  // probability
};

// torchvision's RandomResizedCrop (ten tries, then the largest centre crop within the aspect range)
// and RandomHorizontalFlip: the same distribution, drawn from `random`. A function of its
// arguments.
view_of_image random_resized_crop(int width, int height, int size, const crop_options& options,
                                  random_stream random);

// torchvision's Resize(shorter side to `resize`) and CenterCrop(`size`). Images that are smaller
// than `size` after resizing are not padded: `size` must not be above `resize`.
view_of_image resize_center_crop(int width, int height, int resize, int size);

}  // namespace millrace
