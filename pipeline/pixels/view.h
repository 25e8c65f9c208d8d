#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/base/random.h"

namespace millrace {

// A rectangle of pixels.
struct pixel_box {
  int x = 0;       // column of its left edge
  int y = 0;       // row of its upper edge
  int width = 0;   // columns
  int height = 0;  // rows
  bool operator==(const pixel_box&) const = default;
};

// The part of an image that becomes the output: `crop` is scaled to `scaled_width` x
// `scaled_height`, of which `window` is kept, mirrored if `flip`.
struct view_of_image {
  pixel_box crop;         // in pixels of the image, after turning
  int scaled_width = 0;   // in pixels
  int scaled_height = 0;  // in pixels
  pixel_box window;       // in pixels of the scaled crop
  bool flip = false;      // left and right
};

// The bytes of a view's output: RGB.
inline std::size_t output_bytes(const view_of_image& v) {
  return static_cast<std::size_t>(v.window.width) * static_cast<std::size_t>(v.window.height) * 3;
}

// The whole of an image of this size, in pixels. Above 0, `shorter` is the length to which its
// shorter side is scaled, if it is longer.
view_of_image whole_image(int width, int height, int shorter = 0);

// Options of random_resized_crop(). Areas and aspects are drawn from these ranges.
struct crop_options {
  double least_area = 0.08;       // as a fraction of the image
  double most_area = 1.0;         // up to this
  double least_aspect = 3.0 / 4;  // width / height
  double most_aspect = 4.0 / 3;   // up to this
  double flip = 0.5;              // fraction of the images that are mirrored
};

// torchvision's RandomResizedCrop (ten tries, then the largest centre crop within the aspect range)
// and RandomHorizontalFlip: the same distribution, drawn from `random`. A function of its
// arguments.
view_of_image random_resized_crop(int width, int height, int size, const crop_options& options,
                                  random_stream random);

// torchvision's Resize (shorter side to `resize`) and CenterCrop(`size`), in pixels. Images smaller
// than `size` after resizing are not padded: `size` must not be above `resize`.
view_of_image resize_center_crop(int width, int height, int resize, int size);

}  // namespace millrace
