#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/memory.h"

namespace millrace {

// The compressions that can be read; compression.cc lists their magics and endings.
enum class compression { none, gzip, bzip2, xz, zstd, lz4, lzw };

// The number of first bytes of a file that identify its compression.
inline constexpr std::size_t magic_bytes = 6;
compression compression_of(std::string_view first);

// The largest window that compressors use: zstd --long, xz -9. A stream that claims more is treated
// as hostile.
inline constexpr std::uint64_t largest_window = 129_MiB;

// The compression that the ending of a name or URL stands for, in any case; none for any other
// ending. Ignores a URL's part after '?' or '#'.
compression compression_named(std::string_view url);

// Whether a name has an archive's ending: .tar, .tar.gz, .tgz and so on, in any case.
bool is_archive_name(std::string_view name);

// The bytes that a decoder needs for what compressors usually make; 0: too few to count.
std::size_t usual_window(compression how);

}  // namespace millrace
