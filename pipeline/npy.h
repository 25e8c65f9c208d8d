#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/result.h"

namespace millrace {

// What a NumPy file begins with.
inline constexpr std::string_view npy_magic = "\x93NUMPY";

// What the header of a .npy file says.
struct npy_header {
  static constexpr std::size_t most_dimensions = 32;
  std::string type = {};  // as NumPy names it, little-endian: "u1", "f4"
  std::vector<std::int64_t> shape = {};
  std::size_t size = 0;  // of the header: the items follow, in C's order
};

// Any bytes; whether the items are there is not looked at. Fails with bad_field (skippable).
result<npy_header> read_npy_header(std::span<const std::byte> file);

}  // namespace millrace
