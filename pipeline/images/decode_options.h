#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "pipeline/images/augment.h"
#include "pipeline/images/options.h"

namespace millrace {

class decoded_cache;

// Output sizes that grow by epoch: `size` of the options is that of the last ones. Passes over
// resampled data (epoch_mode::resample) never end: all their images have the first size.
struct growing_size {
  int from = 0;             // pixels; 0: all epochs have the same size
  std::int64_t epochs = 0;  // over which it grows, evenly
  int multiple = 32;        // sizes are rounded to
};

struct decode_options {
  int size = 224;     // of the output, in pixels: size x size
  bool train = true;  // random-resized-crop and flip; else resize and centre crop
  int resize = 0;     // shorter side before the centre crop; 0: size x 256 / 224
  std::uint64_t seed = 0;
  crop_options crop = {};
  augment_options augment = {};                          // where `train`
  growing_size growing = {};                             // where `train`
  std::string images = "jpg;jpeg;png;webp;ppm;pgm;pnm";  // the first of these that a sample has
  std::string label = "auto";                            // pipeline/label.h
  // Above 0: a sample whose label is not in [0, classes) fails with bad_label. 0: any integer is
  // a label. Not with the label "none".
  std::int64_t classes = 0;
  image_options image = {};
  // Fraction of the JPEGs that a decoder on the device decodes: their slots hold the files. JPEGs
  // that are larger than their slot or need turning are excluded. Cannot be combined with
  // `augment`.
  double encoded_share = 0;
  std::shared_ptr<decoded_cache> cache = {};  // of decoded images; null: none
  int in_flight = 0;  // samples on their way through the pool; 0: twelve for each thread
};

// The options with defaults filled in. Throws `failure` (usage) for invalid sizes and
// augmentations.
decode_options checked(decode_options options);
// Of the output, in pixels. Source of the schedule: FFCV's training script (linear, rounded).
int size_in(const decode_options& options, std::int64_t epoch);
}  // namespace millrace
