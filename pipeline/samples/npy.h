#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace millrace {

// The first bytes of a NumPy file.
inline constexpr std::string_view npy_magic = "\x93NUMPY";

// The header of a .npy file.
struct npy_header {
  static constexpr std::size_t most_dimensions = 32;
  std::string type = {};  // as NumPy names it, little-endian: "u1", "f4"
  std::vector<std::int64_t> shape = {};
  std::size_t size = 0;  // of the header; the items follow it, in C order
};

// Reads any bytes; does not check that the items follow. Fails with bad_field (skippable).
result<npy_header> read_npy_header(std::span<const std::byte> file);

}  // namespace millrace
