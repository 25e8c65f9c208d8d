#pragma once

#include <cstdint>
#include <string>

#include "pipeline/images/jpeg.h"
#include "pipeline/plan.h"

namespace millrace {

struct decode_options {
  int size = 224;     // of the output, in pixels: size x size
  bool train = true;  // random-resized-crop and flip; else resize and centre crop
  int resize = 0;     // shorter side before the centre crop; 0: size x 256 / 224
  std::uint64_t seed = 0;
  crop_options crop;
  std::string images = "jpg;jpeg";  // the first of these fields that a sample has
  std::string label = "auto";       // pipeline/label.h
  jpeg_options jpeg;
  int in_flight = 0;  // samples in the pool at once; 0: three for each thread
};

// The options with what is left to them filled in. Throws `failure` (usage) for sizes that cannot
// be.
decode_options checked(decode_options options);
// What part of an image of that size a sample's output is made of.
view_of_image view_of(const decode_options& options, const origin& where, int width, int height);
// The first of the fields that `names` ("jpg;jpeg") lists; nullptr where a sample has none.
const field* first_field(const sample& s, std::string_view names);

// Decodes each sample's JPEG in the CPU pool, straight into its slot of the batch's block, and
// reads its label. Order is kept. Crops and flips are a function of (seed, epoch, position). Errors
// are per sample: bad_image, too_large, bad_label, missing_field, all skippable.
stage<sample, image> decode_jpeg(const decode_options& options = {});

}  // namespace millrace
