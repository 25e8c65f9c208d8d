#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/codecs/jpeg.h"
#include "pipeline/codecs/jpeg_headers.h"
#include "pipeline/codecs/raw_pixels.h"
#include "pipeline/images/augment.h"
#include "pipeline/images/decode_options.h"
#include "pipeline/images/image_decoder.h"
#include "pipeline/pixels/image.h"

namespace millrace {

// The part of an image of this size that becomes the sample's output: also for a mask that needs
// the image's crop (examples/masks.cc). `options` must have passed checked().
view_of_image view_of(const decode_options& options, const origin& where, int width, int height);
// The first of the fields that `names` ("jpg;jpeg") lists; nullptr if the sample has none of them.
// Valid as long as the sample's fields.
const field* first_field(const sample& s, std::string_view names);

// Decodes one sample's image and label: what decode_jpeg() does, for functions of a program
// (examples/two_modalities.cc). One thread; keeps its memory from sample to sample.
class sample_decoder {
 public:
  // Result of decoding a sample, in addition to its pixels.
  struct decoded {
    std::int64_t label = -1;                    // the class; -1: none
    int warnings = 0;                           // of the image's decoder
    std::optional<encoded_image> encoded = {};  // set: `out` holds the file
  };
  // Decodes into `out`: size_in(options, epoch) squared x 3 bytes. The pixels are a function of the
  // sample and the options, which must have passed checked(). Fails, naming the sample, with
  // bad_image, too_large, bad_label or missing_field (all skippable); `out` then holds anything.
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
