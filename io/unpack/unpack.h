#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/names/compression.h"
#include "io/source.h"

namespace millrace {

// A file that has been begun to be read.
struct begun_source {
  compression how = compression::none;
  std::unique_ptr<byte_source> source;  // of what follows `first`
  bytes first;                          // empty for an empty file
};

// Reads what tells the compression, however little of it comes at a time. Fails as reading does.
awaitable<result<begun_source>> begin_reading(std::unique_ptr<byte_source> source);

// What to unpack, and with what.
struct packed {
  compression how = compression::none;
  std::unique_ptr<byte_source> source;
  bytes first;  // what has been read of it already
  std::string url;
};

// Where unpacking takes its memory from.
struct unpack_memory {
  std::shared_ptr<memory_share> pieces;   // what has been unpacked: 1 MiB or more
  std::shared_ptr<memory_share> windows;  // what decoders keep of it, as the stream demands
  // Where both are one share: what cannot be waited for of it. A source adds the room for its
  // pieces, and what its decoder takes.
  std::shared_ptr<std::size_t> held = nullptr;
  // Where several decoders share `windows`: what this one takes at its first window, at least. One
  // that grows and finds no room fails with no_memory, for those that hold a window never wait; it
  // then sets this to what would have been enough, and can be begun anew with it.
  std::shared_ptr<std::size_t> at_first = nullptr;
};
// Of `pieces`, what a file has in use at the same time: one that is unpacked, one that is read, and
// one that a sample being put together holds.
inline constexpr std::size_t unpacked_piece_bytes = 256_KiB;
inline constexpr std::size_t room_for_pieces = 3 * unpacked_piece_bytes;

// What `windows` should have for files of these names, where there is room: 0 for names by which
// they are not compressed, or by gzip, which needs none.
std::size_t memory_for_windows(std::span<const std::string> urls);

// The unpacked bytes from `offset` on (counted in unpacked bytes: what lies before is unpacked and
// left out). Unpacking runs off the spine. What the stream claims that its decoder needs (a
// dictionary, a window) is taken from `memory` before the decoder learns of it, and is too_large
// where there is not as much: skippable only where it is more than compressors make. A cut or
// damaged stream is an error, and so is one that grows by more than options.max_expansion; several
// streams one behind the other are one.
std::unique_ptr<byte_source> unpack(const source_context& context, unpack_memory memory,
                                    packed what, std::uint64_t offset);

// All of a gzip stream in memory, `most` bytes of it; counted as work memory
// (engine/work_memory.h), as the next one's is. Fails with bad_archive, truncated, too_large, or
// with no_memory where work memory is refused.
result<std::string> gunzip_all(std::span<const std::byte> compressed, std::size_t most);
// The files in a zip archive in memory, `most` bytes in all. The same errors.
result<std::vector<std::pair<std::string, std::string>>> unzip_all(
    std::span<const std::byte> archive, std::size_t most);

// One way to unpack. Lives in `unpack`; one step at a time.
class unpacker {
 public:
  virtual ~unpacker() = default;
  // The result of a step: bytes written, and whether input is needed for more. 0 bytes without
  // needing input: the end.
  struct progress {
    std::size_t written = 0;
    bool wants_input = false;
  };
  // An empty piece is the end of the input. Only when input is wanted.
  virtual void feed(bytes input) = 0;
  // Fills `into` as far as the input goes. Keep `self` until then.
  virtual awaitable<result<progress>> step(std::shared_ptr<unpacker> self, buffer into) = 0;
};

// By zlib, because it verifies the checksum, in the CPU pool.
std::shared_ptr<unpacker> make_gunzip(const source_context& context);
// By one of libarchive's filters, which pull their input: each on a thread of its own. What comes
// out is not unpacked again, whatever it is.
std::shared_ptr<unpacker> make_archive_filter(const source_context& context, compression how);

}  // namespace millrace
