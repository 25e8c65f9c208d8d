#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "pipeline/images/augment.h"
#include "pipeline/images/image_decoder.h"
#include "pipeline/pixels/options.h"

namespace millrace {

class decoded_cache;

// Output sizes that grow by epoch, up to decode_options::size. Epochs of resampled data
// (epoch_mode::resample) never end: all their images have the first size.
struct growing_size {
  int from = 0;             // size of the first epoch in pixels; 0: all epochs have the same
  std::int64_t epochs = 0;  // over which it grows, evenly; 1 or more
  int multiple = 32;        // sizes are rounded to multiples of this
};

// Options of decode_jpeg() and sample_decoder.
struct decode_options {
  int size = 224;                // of the output in pixels, 1 to 16,384: size x size
  bool train = true;             // random-resized-crop and flip; false: resize and centre crop
  int resize = 0;                // shorter side before the centre crop; 0: size x 256 / 224
  std::uint64_t seed = 0;        // of crops, flips and augmentations
  crop_options crop = {};        // if `train`
  augment_options augment = {};  // if `train`
  growing_size growing = {};     // if `train`
  // The first of these fields that a sample has is its image. By default those of all formats that
  // are decoded: see image_formats().
  std::string images = decoded_extensions();
  // The class: "auto" (the first of the fields cls, cls2, index, inx, id), an extension (that
  // field's integer), "json:A.B" (the number at A.B in the field json), or "none" (-1).
  std::string label = "auto";
  // Above 0: a sample whose label is not in [0, classes) fails with bad_label. 0: any integer is a
  // label. Cannot be combined with the label "none".
  std::int64_t classes = 0;
  image_options image = {};  // how the pixels are made
  // Fraction of the JPEGs that a decoder on the device decodes (host_batch::encoded): their slots
  // hold the files. JPEGs that are larger than their slot or must be turned are not among them.
  // Cannot be combined with `augment`.
  double encoded_share = 0;
  std::shared_ptr<decoded_cache> cache = {};  // of decoded images; null: none
  int in_flight = 0;  // samples on their way through the pool; 0: twelve for each thread
};

// The options with their defaults filled in. Throws `failure` (usage) for options out of range, and
// for those that cannot be combined.
decode_options checked(decode_options options);
// The side of the output in pixels in an epoch. Source of the schedule: FFCV's training script
// (linear, rounded).
int size_in(const decode_options& options, std::int64_t epoch);
}  // namespace millrace
