#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/images/augment.h"
#include "pipeline/images/decode_options.h"
#include "pipeline/images/image.h"
#include "pipeline/images/image_decoder.h"
#include "pipeline/images/jpeg_headers.h"

namespace millrace {

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
