// Any bytes are an image or an error, of every format, strictly and leniently, whole and in part;
// and a second look at the same bytes gives the same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <vector>

#include "pipeline/images/image_decoder.h"

namespace {

using namespace millrace;
using pixels = std::vector<std::uint8_t>;

constexpr image_limits small{.max_pixels = 1 << 18, .max_held_bytes = 4 << 20};

std::optional<pixels> decoded(std::span<const std::byte> file, const image_options& options,
                              bool whole) {
  static image_decoder decoder;
  pixels out;
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
  if (!decoder.decode(file, options, choose, place)) return std::nullopt;
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  for (const bool lenient : {false, true}) {
    const image_options options{.limits = small, .lenient = lenient, .fill_truncated = lenient};
    for (const bool whole : {false, true}) {
      if (decoded(file, options, whole) != decoded(file, options, whole)) std::abort();
    }
  }
  return 0;
}
