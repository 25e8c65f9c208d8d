#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/source.h"

namespace millrace {

enum class compression { none, gzip, bzip2, xz, zstd, lz4, lzw };

// By the first bytes of a file; at least `magic_bytes` of them, or all there are.
compression compression_of(std::span<const std::byte> first);
inline constexpr std::size_t magic_bytes = 6;

// Whether a file of this name is compressed, as names go (.gz, .tgz, .bz2, .tbz2, .xz, .txz, .zst,
// .tzst, .lz4, .Z).
bool has_compressed_name(std::string_view url);

// What to unpack, and with what.
struct packed {
  compression how = compression::none;
  std::unique_ptr<byte_source> source;
  bytes first;  // what has been read of it already
  std::string url;
};

// The unpacked bytes from `offset` on (counted in unpacked bytes: what lies before is unpacked and
// left out), in buffers from `memory`. Unpacking runs off the spine. A cut or damaged stream is an
// error, and so is one that grows by more than options.max_expansion; several streams one behind
// the other are one.
std::unique_ptr<byte_source> unpack(const source_context& context,
                                    std::shared_ptr<memory_share> memory, packed what,
                                    std::uint64_t offset);

// All of a gzip stream in memory, `most` bytes of it. Fails with bad_archive, truncated or
// too_large.
result<std::string> gunzip_all(std::span<const std::byte> compressed, std::size_t most);
// The files in a zip archive in memory, `most` bytes in all. The same errors.
result<std::vector<std::pair<std::string, std::string>>> unzip_all(
    std::span<const std::byte> archive, std::size_t most);

// One way to unpack. Lives in `unpack`; one step at a time.
class unpacker {
 public:
  virtual ~unpacker() = default;
  // How far a step came: bytes written, and whether nothing more comes without input. 0 bytes
  // without want of input: the end.
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
// By libarchive's filters, which pull their input: each on a thread of its own.
std::shared_ptr<unpacker> make_archive_filter(const source_context& context);

}  // namespace millrace
