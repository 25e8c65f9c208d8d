#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/images/augment.h"
#include "pipeline/images/decoded_cache.h"
#include "pipeline/images/image_decoder.h"
#include "pipeline/images/jpeg_headers.h"
#include "pipeline/sample.h"

namespace millrace {

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
  crop_options crop;
  augment_options augment;                               // where `train`
  growing_size growing;                                  // where `train`
  std::string images = "jpg;jpeg;png;webp;ppm;pgm;pnm";  // the first of these that a sample has
  std::string label = "auto";                            // pipeline/label.h
  // Above 0: a sample whose label is not in [0, classes) fails with bad_label. 0: any integer is
  // a label. Not with the label "none".
  std::int64_t classes = 0;
  image_options image;
  // Fraction of the JPEGs that a decoder on the device decodes: their slots hold the files. JPEGs
  // that are larger than their slot or need turning are excluded. Cannot be combined with
  // `augment`.
  double encoded_share = 0;
  std::shared_ptr<decoded_cache> cache;  // of decoded images; null: none
  int in_flight = 0;  // samples on their way through the pool; 0: twelve for each thread
};

// The options with defaults filled in. Throws `failure` (usage) for invalid sizes and
// augmentations.
decode_options checked(decode_options options);
// Of the output, in pixels. Source of the schedule: FFCV's training script (linear, rounded).
int size_in(const decode_options& options, std::int64_t epoch);
// The part of an image of that size that becomes a sample's output.
view_of_image view_of(const decode_options& options, const origin& where, int width, int height);
// The first of the fields that `names` ("jpg;jpeg") lists; nullptr where a sample has none.
const field* first_field(const sample& s, std::string_view names);

// One sample's image and label. One thread; keeps its memory from sample to sample.
class sample_decoder {
 public:
  struct decoded {
    std::int64_t label = -1;
    int warnings = 0;  // of the image's decoder
    std::optional<encoded_image> encoded = {};
  };
  // `out`: size_in(options, epoch) squared x 3 bytes. The pixels are a function of the sample and
  // the options. Fails, naming the sample, with bad_image, too_large, bad_label or missing_field
  // (all skippable); `out` is then undefined.
  result<decoded> decode(const sample& s, const decode_options& options, std::uint8_t* out);

 private:
  result<int> decode_image(const sample& s, const field& file, const decode_options& options,
                           const view_chooser& choose, const pixel_place& place);
  result<int> by_cache(const sample& s, const field& file, const decode_options& options,
                       const view_chooser& choose, const pixel_place& place);

  std::optional<encoded_image> left_encoded(const sample& s, std::span<const std::byte> file,
                                            const decode_options& options, std::uint8_t* out);

  image_decoder images_;
  jpeg_headers headers_;
  jpeg_decoder jpeg_;  // for sizes
  raw_pixels kept_;
  std::vector<std::uint8_t> whole_;  // an image on its way into the cache
  augmenter augment_;
};

}  // namespace millrace
