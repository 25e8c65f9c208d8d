#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/base/units.h"

namespace millrace {

// The compressions that can be read: known_compressions has how they are recognised,
// io/unpack/decoders.cc how they are decoded.
enum class compression { none, gzip, bzip2, xz, zstd, lz4, lzw };

struct known_compression {
  compression how;
  std::string_view magic;    // the first bytes of a stream
  std::string_view ending;   // of any file's name, in lower case
  std::string_view archive;  // of a tar's; empty: only .tar and `ending`
  std::uint64_t window;      // the bytes that a decoder usually needs; 0: too few to count
};

// The largest window that compressors use: zstd --long, xz -9. A stream that claims more is treated
// as hostile.
inline constexpr std::uint64_t largest_window = 129_MiB;

// Every compression but none.
inline constexpr auto known_compressions = [] {
  using namespace std::string_view_literals;
  using enum compression;
  return std::to_array<known_compression>(
      {{gzip, "\x1f\x8b"sv, ".gz", ".tgz", 0},
       {bzip2, "BZh"sv, ".bz2", ".tbz2", 4_MiB},
       {xz, "\xfd\x37zXZ\0"sv, ".xz", ".txz", largest_window},
       {zstd, "\x28\xb5\x2f\xfd"sv, ".zst", ".tzst", largest_window},
       {lz4, "\x04\x22\x4d\x18"sv, ".lz4", "", 24_MiB},
       {lzw, "\x1f\x9d"sv, ".z", "", 0}});
}();

// The first bytes of a stream; empty for none.
constexpr std::string_view magic_of(compression how) {
  const auto* const found = std::ranges::find(known_compressions, how, &known_compression::how);
  return found == known_compressions.end() ? std::string_view() : found->magic;
}

// The number of first bytes of a file that identify its compression.
inline constexpr std::size_t magic_bytes =
    std::ranges::max(known_compressions, {}, [](const auto& c) {
      return c.magic.size();
    }).magic.size();
compression compression_of(std::string_view first);

// The compression that the ending of a name or URL stands for, in any case; none for any other
// ending. Ignores a URL's part after '?' or '#'.
compression compression_named(std::string_view url);

// Whether a name has an archive's ending: .tar, .tar.gz, .tgz and so on, in any case.
bool is_archive_name(std::string_view name);

// The bytes that a decoder needs for what compressors usually make; 0: too few to count.
std::size_t usual_window(compression how);

}  // namespace millrace
