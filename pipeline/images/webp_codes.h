#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace millrace {

// What stands before the pixels of a lossless image, and tells how they are coded.
struct webp_codes {
  std::uint64_t groups = 0;   // of prefix codes
  std::uint64_t numbers = 0;  // that groups have; some of them may be nobody's
  std::uint64_t pixels = 0;   // of the images that tell which group is where, and of transforms
};

// Of the contents of a chunk VP8L: most of what libwebp needs for a file is for groups, where there
// are many. nullopt: it is damaged, cut, large or otherwise not to be told, and there may be as
// many as the file has room for. Any bytes.
std::optional<webp_codes> codes_of_webp(std::span<const std::byte> image);

}  // namespace millrace
