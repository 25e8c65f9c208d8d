#include "pipeline/pixels/orientation.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace millrace {
namespace {

// Bytes of an entry's integer type: SHORT, as EXIF demands, or what files have instead. Source:
// TIFF 6.0, section 2, "Types".
std::size_t bytes_of_type(std::uint32_t type) {
  switch (type) {
    case 1:  // BYTE
    case 6:  // SBYTE
      return 1;
    case 4:  // LONG
    case 9:  // SLONG
      return 4;
    default:
      return 2;
  }
}

}  // namespace

exif_orientation orientation_of(std::span<const std::byte> exif) {
  constexpr std::array<unsigned char, 6> name = {'E', 'x', 'i', 'f', 0, 0};
  constexpr std::size_t header_bytes = 8;
  constexpr std::size_t entry_bytes = 12;
  constexpr unsigned orientation_tag = 0x0112;
  const auto named = std::as_bytes(std::span(name));
  const bool has_name =
      exif.size() >= name.size() && std::ranges::equal(exif.first(name.size()), named);
  const auto tiff = exif.subspan(has_name ? name.size() : 0);
  if (tiff.size() < header_bytes) return {};
  const unsigned order = std::to_integer<unsigned>(tiff[0]);
  if ((order != 'I' && order != 'M') || tiff[1] != tiff[0]) return {};
  const auto number = [&](std::size_t at, std::size_t bytes) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < bytes; ++i) {
      const std::size_t from = at + (order == 'I' ? bytes - 1 - i : i);
      value = value << 8 | std::to_integer<std::uint32_t>(tiff[from]);
    }
    return value;
  };
  const std::size_t directory = number(4, 4);
  if (directory > tiff.size() || tiff.size() - directory < 2) return {};
  const std::size_t entries = number(directory, 2);
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t at = directory + 2 + i * entry_bytes;
    if (at + entry_bytes > tiff.size()) return {};
    if (number(at, 2) != orientation_tag) continue;
    const std::uint32_t value = number(at + 8, bytes_of_type(number(at + 2, 2)));
    return {value >= 1 && value <= 8 ? static_cast<int>(value) : 1};
  }
  return {};
}

}  // namespace millrace
