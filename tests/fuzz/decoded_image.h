#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <vector>

#include "engine/memory/work_memory.h"
#include "pipeline/images/image_decoder.h"

namespace millrace {

// What the fuzzers of images share.
using octets = std::vector<std::uint8_t>;

// The pixels that a decoder of that kind gives: of the whole image, or of its middle made 20 by 20,
// mirrored. nullopt: it gives an error.
template <class Decoder>
std::optional<octets> decoded(std::span<const std::uint8_t> file, const image_options& options,
                              bool whole) {
  static Decoder decoder;
  octets out;
  const auto choose = [&](int width, int height) {
    if (whole) return whole_image(width, height, 64);
    return view_of_image{.crop = {width / 3, height / 3, (width + 2) / 3, (height + 2) / 3},
                         .scaled_width = 20,
                         .scaled_height = 20,
                         .window = {0, 0, 20, 20},
                         .flip = true};
  };
  const auto place = [&](const view_of_image& v) {
    out.resize(output_bytes(v));
    return std::span(out);
  };
  if (!decoder.decode(std::as_bytes(file), options, choose, place)) return std::nullopt;
  return out;
}

// Ends the program where the same file gives other pixels the second time, or memory is kept.
template <class Decoder>
void decode_twice(const octets& file, const image_options& options, work_memory& memory) {
  for (const bool whole : {true, false}) {
    if (decoded<Decoder>(file, options, whole) != decoded<Decoder>(file, options, whole)) {
      std::abort();
    }
  }
  if (memory.in_use() != 0) std::abort();
}

}  // namespace millrace
