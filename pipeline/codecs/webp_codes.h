#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace millrace {

// What precedes the pixels of a lossless image and says how they are coded.
struct webp_codes {
  std::uint64_t groups = 0;   // groups of prefix codes in use
  std::uint64_t numbers = 0;  // group numbers; some may be unused
  std::uint64_t pixels = 0;   // in images that assign groups to squares, and in transforms
};

// Reads the contents of a VP8L chunk. If there are many groups, they take most of the memory that
// libwebp needs for the file. nullopt: the chunk is damaged, truncated, too large or otherwise not
// readable; assume as many groups as the file has room for. Accepts any bytes.
std::optional<webp_codes> codes_of_webp(std::span<const std::byte> image);

}  // namespace millrace
