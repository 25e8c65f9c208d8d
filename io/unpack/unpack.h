#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/units.h"
#include "io/names/compression.h"
#include "io/source.h"

namespace millrace {

// A source of which the first bytes have been read.
struct begun_source {
  compression how = compression::none;
  std::unique_ptr<byte_source> source;  // the rest, after `first`
  bytes first;                          // empty for an empty file
};

// Reads the bytes that identify the compression, however few arrive at a time. Fails as reading
// does.
awaitable<result<begun_source>> begin_reading(std::unique_ptr<byte_source> source);

// The bytes to unpack, and their compression, which is not `none`.
struct packed {
  compression how = compression::none;
  std::unique_ptr<byte_source> source;
  bytes first;  // the bytes already read of it
  std::string url;
};

// The shares from which unpacking takes its memory.
struct unpack_memory {
  std::shared_ptr<memory_share> pieces;   // unpacked bytes: 1 MiB or more
  std::shared_ptr<memory_share> windows;  // memory of decoders, as the stream demands
  // If both are one share: the part of it that cannot be waited for. A source adds the room for its
  // pieces, and the memory of its decoder.
  std::shared_ptr<std::size_t> held = nullptr;
  // If several decoders share `windows`: the least that this one takes at its first window.
  // Decoders that hold a window never wait, so one that grows and finds no room fails with
  // no_memory. It then sets this to what would have been enough, and can be restarted with it.
  std::shared_ptr<std::size_t> at_first = nullptr;
};
// The room in `pieces` for what one file uses at the same time: a piece being unpacked, one being
// read, and one held by an incomplete sample.
inline constexpr std::size_t unpacked_piece_bytes = 256_KiB;
inline constexpr std::size_t room_for_pieces = 3 * unpacked_piece_bytes;

// The memory that `windows` should have for files with these names, if there is room; 0 if by their
// names they are not compressed, or by gzip, which needs none.
std::size_t memory_for_windows(std::span<const std::string> urls);

// The unpacked bytes from `offset` on (counted in unpacked bytes; those before it are unpacked and
// dropped). Unpacking runs off the spine. The memory that the stream claims for its decoder (a
// dictionary, a window) is taken from `memory` before the decoder sees the claim. If there is not
// enough, it fails with too_large, which is skippable only if the claim exceeds what compressors
// use. A truncated or damaged stream is an error, and so is one that grows by more than
// options.max_expansion. Concatenated streams are one.
std::unique_ptr<byte_source> unpack(const source_context& context, unpack_memory memory,
                                    packed what, std::uint64_t offset);

// Unpacks a whole gzip stream in memory, up to `most` bytes; counted as work memory
// (engine/memory/work_memory.h), as are those of unzip_all(). Fails with bad_archive, truncated,
// too_large, or with no_memory if work memory is refused.
result<std::string> gunzip_all(std::span<const std::byte> compressed, std::size_t most);
// Unpacks the files of a zip archive in memory, up to `most` bytes in all. Fails with the same
// errors.
result<std::vector<std::pair<std::string, std::string>>> unzip_all(
    std::span<const std::byte> archive, std::size_t most);

}  // namespace millrace
