// Any bytes are an image or an error, of every format, strictly and leniently, whole and in part;
// and a second look at the same bytes gives the same.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "pipeline/images/image_decoder.h"
#include "tests/fuzz/decoded_image.h"

using namespace millrace;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr image_limits small{.max_pixels = 1 << 18, .max_held_bytes = 4 << 20};
  const std::span file(data, size);
  for (const bool lenient : {false, true}) {
    const image_options options{.limits = small, .lenient = lenient, .fill_truncated = lenient};
    for (const bool whole : {false, true}) {
      const auto first = decoded<image_decoder>(file, options, whole);
      if (first != decoded<image_decoder>(file, options, whole)) std::abort();
    }
  }
  return 0;
}
