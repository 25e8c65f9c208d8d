// Any bytes as the chunks of a PNG, with checksums that are right: what stands in them is reached.
#include <algorithm>
#include <array>
#include <cstdint>

#include "engine/base/units.h"
#include "pipeline/codecs/png.h"
#include "tests/fuzz/decoded_image.h"

using namespace millrace;

namespace {

// Source: PNG specification, annex D.
std::uint32_t crc_of(const std::uint8_t* data, std::size_t size) {
  std::uint32_t crc = ~0U;
  for (std::size_t i = 0; i < size; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? 0xEDB88320U ^ (crc >> 1) : crc >> 1;
  }
  return ~crc;
}

// Lengths are cut to what there is.
octets with_checksums(const std::uint8_t* data, std::size_t size) {
  constexpr std::array<std::uint8_t, 8> signature{0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
  octets out(signature.begin(), signature.end());
  const bool is_signed = size >= 8 && std::equal(signature.begin(), signature.end(), data);
  for (std::size_t at = is_signed ? 8 : 0; at + 8 <= size;) {
    const std::size_t told = std::size_t{data[at + 2]} << 8 | data[at + 3];
    const std::size_t length = std::min(told, size - at - 8);
    const auto put = [&](std::size_t value) {
      for (int shift = 24; shift >= 0; shift -= 8) {
        out.push_back(static_cast<std::uint8_t>(value >> shift));
      }
    };
    put(length);
    out.insert(out.end(), data + at + 4, data + at + 8 + length);
    put(crc_of(data + at + 4, length + 4));
    at += 8 + length + 4;
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static work_memory memory(8_MiB);
  const work_memory_scope in(memory);
  const octets file = with_checksums(data, size);
  for (const bool lenient : {false, true}) {
    const image_options options{
        .limits = {.max_pixels = 1 << 16}, .lenient = lenient, .fill_truncated = lenient};
    decode_twice<png_decoder>(file, options, memory);
  }
  return 0;
}
