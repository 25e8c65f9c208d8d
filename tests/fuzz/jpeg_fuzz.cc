// Any bytes as a JPEG: decoded by its restart runs and without them, with libjpeg's Huffman decoder
// and without it, in every mode, and rewritten.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <vector>

#include "pipeline/codecs/jpeg.h"
#include "pipeline/codecs/jpeg_rewrite.h"

namespace {

using namespace millrace;
using pixels = std::vector<std::uint8_t>;

constexpr image_limits small{.max_pixels = 1 << 18, .max_held_bytes = 4 << 20};

std::optional<pixels> decoded(std::span<const std::byte> file, const image_options& options,
                              bool whole) {
  static jpeg_decoder decoder;
  pixels out;
  const auto choose = [&](int width, int height) {
    pixel_box box{.x = 0, .y = 0, .width = width, .height = height};
    if (!whole) {
      box = {width / 3, height / 3, std::max(1, width / 2), std::max(1, height / 2)};
      box.width = std::min(box.width, width - box.x);
      box.height = std::min(box.height, height - box.y);
    }
    return view_of_image{.crop = box,
                         .scaled_width = 20,
                         .scaled_height = 14,
                         .window = {.x = 1, .y = 2, .width = 17, .height = 11},
                         .flip = width % 2 == 0};
  };
  const auto room = [&](const view_of_image&) {
    out.resize(std::size_t{17} * 11 * 3);
    return std::span(out);
  };
  if (!decoder.decode(file, options, choose, room)) return std::nullopt;
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span file(reinterpret_cast<const std::byte*>(data), size);
  const image_options plain{.limits = small, .runs = false};
  for (const bool lenient : {false, true}) {
    image_options by_library{.limits = small, .lenient = lenient, .fill_truncated = lenient};
    by_library.runs = by_library.own_huffman = false;
    image_options own = by_library;
    own.own_huffman = true;
    for (const bool whole : {false, true}) {
      if (decoded(file, by_library, whole) != decoded(file, own, whole)) std::abort();
    }
  }
  const bool is_well = decoded(file, plain, true).has_value();
  const auto part = decoded(file, plain, false);
  const auto by_runs = decoded(file, {.limits = small}, false);
  // Where nothing is wrong with the file, both ways give the same pixels.
  if (is_well && part != by_runs) std::abort();
  (void)decoded(file, {.limits = small, .lenient = true, .fast = true}, false);
  if (const auto rewritten = with_restart_runs(file, 2, small)) {
    if (is_well && !decoded(*rewritten, plain, true)) std::abort();
    if (decoded(*rewritten, plain, false) != decoded(*rewritten, {.limits = small}, false)) {
      std::abort();
    }
  }
  return 0;
}
