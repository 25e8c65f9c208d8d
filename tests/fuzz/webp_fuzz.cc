// Any bytes as the chunks of a WebP whose sizes are right: what stands in them is reached.
#include <algorithm>
#include <cstdint>

#include "engine/base/units.h"
#include "pipeline/codecs/webp.h"
#include "tests/fuzz/decoded_image.h"

using namespace millrace;

namespace {

octets with_sizes(const std::uint8_t* data, std::size_t size) {
  octets out(data, data + size);
  const auto put = [&](std::size_t at, std::size_t value) {
    for (std::size_t i = 0; i < 4; ++i) out[at + i] = static_cast<std::uint8_t>(value >> (8 * i));
  };
  constexpr std::size_t riff = 12;
  if (size < riff + 8) return out;
  std::copy_n("RIFF", 4, out.begin());
  std::copy_n("WEBP", 4, out.begin() + 8);
  put(4, size - 8);
  for (std::size_t at = riff; at + 8 <= size;) {
    const std::size_t told = std::size_t{out[at + 4]} | std::size_t{out[at + 5]} << 8;
    const std::size_t length = std::min(told, size - at - 8);
    put(at + 4, length);
    at += 8 + length + length % 2;
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static work_memory memory(8_MiB);
  const work_memory_scope in(memory);
  const octets file = with_sizes(data, size);
  for (const bool fills : {false, true}) {
    const image_options options{.limits = {.max_pixels = 1 << 16}, .fill_truncated = fills};
    decode_twice<webp_decoder>(file, options, memory);
  }
  return 0;
}
