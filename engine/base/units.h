#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "engine/base/result.h"

namespace millrace {

// "512M", "4G", "1048576" (K, M, G, T are powers of 1024; an i and a B may follow).
result<std::size_t> parse_bytes(std::string_view text);
// "256.0 MiB".
std::string format_bytes(std::size_t bytes);

// The unit of large allocations and of direct reads, in bytes.
inline constexpr std::size_t page_bytes = 4096;
// `size` rounded up to a multiple of `unit`.
constexpr std::size_t round_up(std::size_t size, std::size_t unit) {
  return (size + unit - 1) / unit * unit;
}

// Sizes in bytes, such as 512_MiB.
inline namespace literals {
// Units of 1024 bytes: 64_KiB.
constexpr std::size_t operator""_KiB(unsigned long long n) {
  return n << 10;
}
// Units of 1024^2 bytes: 512_MiB.
constexpr std::size_t operator""_MiB(unsigned long long n) {
  return n << 20;
}
// Units of 1024^3 bytes: 4_GiB.
constexpr std::size_t operator""_GiB(unsigned long long n) {
  return n << 30;
}
}  // namespace literals

}  // namespace millrace
