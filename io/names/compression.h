#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/memory.h"

namespace millrace {

// The compressions that are read; compression.cc has what tells each of them.
enum class compression { none, gzip, bzip2, xz, zstd, lz4, lzw };

// As many of a file's first bytes tell its compression.
inline constexpr std::size_t magic_bytes = 6;
compression compression_of(std::string_view first);

// What compressors make: of zstd --long, of xz -9. A stream that claims more is taken for hostile.
inline constexpr std::uint64_t largest_window = 129_MiB;

// By its name (its ending, in any case): none for a URL that does not tell. Of a URL's path, what
// follows '?' or '#' is no part.
compression compression_named(std::string_view url);

// Whether a name ends as an archive's does: .tar, .tar.gz, .tgz and so on, in any case.
bool is_archive_name(std::string_view name);

// The memory that a decoder takes for what compressors usually make, in bytes; 0: none that counts.
std::size_t usual_window(compression how);

}  // namespace millrace
