#include "io/unpack/decoders.h"

#include <archive.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/base/units.h"

namespace millrace {
namespace {

constexpr std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t out = 0;
  for (std::size_t i = bytes.size(); i-- > 0;)
    out = out << 8 | static_cast<unsigned char>(bytes[i]);
  return out;
}

// Frames that zstd and lz4 skip: four bytes with a length, then as many bytes.
bool is_skippable(std::uint64_t magic) {
  return (magic & ~std::uint64_t{15}) == 0x184d2a50;
}

unsigned byte_at(std::string_view bytes, std::size_t at) {
  return static_cast<unsigned char>(bytes[at]);
}

// Streams of blocks, each with an LZMA2 dictionary of its own (The .xz File Format, 1.1.0). The
// length of a block is in its LZMA2 chunks, if nowhere else.
class xz_windows final : public stream_windows {
 public:
  xz_windows() : stream_windows(compression::xz) { expect_stream(stream_header); }

 private:
  static constexpr std::size_t stream_header = 12;
  static constexpr std::size_t stream_footer = 12;
  enum class state { stream, block_size, block, chunk, chunk_sizes, index };

  void on_bytes(std::string_view got) override {
    switch (state_) {
      case state::stream:
        return on_stream(got);
      case state::block_size:
        return on_block_size(got[0]);
      case state::block:
        return on_block(got);
      case state::chunk:
        return on_chunk(byte_at(got, 0));
      case state::chunk_sizes:
        return after_chunk(got);
      case state::index:
        return on_index(byte_at(got, 0));
    }
  }

  void on_stream(std::string_view got) {
    if (!got.starts_with(magic_of(compression::xz))) return fail("no xz stream begins here");
    static constexpr std::array<std::uint64_t, 16> sizes = {0,  4,  4,  4,  8,  8,  8,  16,
                                                            16, 16, 32, 32, 32, 64, 64, 64};
    check_bytes_ = sizes[byte_at(got, 7) & 15];
    next_block(0);
  }

  void next_block(std::uint64_t skip_bytes) {
    state_ = state::block_size;
    expect(1, skip_bytes);
  }

  void on_block_size(char size) {
    if (size != 0) {
      state_ = state::block;
      return expect((static_cast<unsigned char>(size) + std::size_t{1}) * 4 - 1);
    }
    state_ = state::index;
    index_bytes_ = 1;
    numbers_left_.reset();
    begin_number();
  }

  // Takes a number, 7 bits a byte, off the front of `from`.
  static std::optional<std::uint64_t> take_number(std::string_view& from) {
    std::uint64_t out = 0;
    for (unsigned i = 0; i < 9 && i < from.size(); ++i) {
      out |= std::uint64_t{byte_at(from, i) & 0x7f} << 7 * i;
      if ((byte_at(from, i) & 0x80) != 0) continue;
      from.remove_prefix(i + 1);
      return out;
    }
    return std::nullopt;
  }

  void on_block(std::string_view header) {
    constexpr std::uint64_t lzma2 = 0x21;
    const unsigned flags = byte_at(header, 0);
    header.remove_prefix(1);
    const unsigned sizes = (flags >> 6 & 1) + (flags >> 7 & 1);
    for (unsigned i = 0; i < sizes; ++i) {
      if (!take_number(header)) return fail("an xz block without its sizes");
    }
    std::uint64_t dictionary = 0;
    for (unsigned i = 0; i <= (flags & 3); ++i) {
      const auto filter = take_number(header);
      const auto size = take_number(header);
      if (!filter || !size || *size > header.size())
        return fail("a truncated filter in an xz block");
      const bool is_last = i == (flags & 3);
      if (is_last != (*filter == lzma2) || (is_last && (*size != 1 || byte_at(header, 0) > 40))) {
        return fail("an xz block without LZMA2");
      }
      if (is_last) {
        const unsigned bits = byte_at(header, 0);
        dictionary = bits == 40 ? 0xffff'ffffU : std::uint64_t{2 | (bits & 1)} << (bits / 2 + 11);
      }
      header.remove_prefix(static_cast<std::size_t>(*size));
    }
    need(dictionary);
    data_bytes_ = 0;
    next_chunk(0);
  }

  void next_chunk(std::uint64_t skip_bytes) {
    state_ = state::chunk;
    expect(1, skip_bytes);
  }

  void on_chunk(unsigned control) {
    ++data_bytes_;
    if (control == 0) return next_block((4 - data_bytes_ % 4) % 4 + check_bytes_);
    if (control > 2 && control < 0x80) return fail("no LZMA2 chunk begins here");
    has_properties_ = control >= 0xc0;
    state_ = state::chunk_sizes;
    expect(control < 0x80 ? 2 : 4);
  }

  // Sizes are big-endian, minus one: the unpacked size, then the packed one.
  void after_chunk(std::string_view sizes) {
    const auto at = sizes.size() - 2;
    const std::uint64_t skip_bytes =
        (byte_at(sizes, at) << 8 | byte_at(sizes, at + 1)) + 1 + (has_properties_ ? 1 : 0);
    has_properties_ = false;
    data_bytes_ += sizes.size() + skip_bytes;
    next_chunk(skip_bytes);
  }

  void begin_number() {
    number_ = 0;
    shift_ = 0;
    expect(1);
  }

  // The number of records, two numbers for each record, padding, a checksum, and the stream's
  // footer.
  void on_index(unsigned got) {
    ++index_bytes_;
    if (shift_ > 56) return fail("an invalid number in the index of an xz stream");
    number_ |= std::uint64_t{got & 0x7f} << shift_;
    shift_ += 7;
    if ((got & 0x80) != 0) return expect(1);
    if (numbers_left_) {
      --*numbers_left_;
    } else {
      numbers_left_ = number_ * 2;
    }
    if (*numbers_left_ > 0) return begin_number();
    state_ = state::stream;
    expect_stream(stream_header, (4 - index_bytes_ % 4) % 4 + 4 + stream_footer);
  }

  state state_ = state::stream;
  std::uint64_t check_bytes_ = 0;
  std::uint64_t data_bytes_ = 0;  // of the block, so far
  bool has_properties_ = false;
  std::uint64_t index_bytes_ = 0;
  std::optional<std::uint64_t> numbers_left_;  // of the index, when their count has been read
  std::uint64_t number_ = 0;
  unsigned shift_ = 0;
};

// Frames of blocks (RFC 8878, 3.1).
class zstd_windows final : public stream_windows {
 public:
  zstd_windows() : stream_windows(compression::zstd) { expect_stream(4); }

 private:
  // libzstd refuses larger ones by default; libarchive does not change that.
  static constexpr std::uint64_t largest_zstd_window = 128 << 20;
  enum class state { magic, skippable, descriptor, header, block };

  void on_bytes(std::string_view got) override {
    switch (state_) {
      case state::magic: {
        const std::uint64_t magic = little_endian(got);
        const bool is_frame = magic == little_endian(magic_of(compression::zstd));
        if (!is_frame && !is_skippable(magic)) return fail("no zstd frame begins here");
        state_ = is_frame ? state::descriptor : state::skippable;
        return expect(is_frame ? 1 : 4);
      }
      case state::skippable:
        return next_frame(little_endian(got));
      case state::descriptor:
        return on_descriptor(byte_at(got, 0));
      case state::header:
        return on_header(got);
      case state::block:
        return on_block(little_endian(got));
    }
  }

  void next_frame(std::uint64_t skip_bytes) {
    state_ = state::magic;
    expect_stream(4, skip_bytes);
  }

  void on_descriptor(unsigned flags) {
    static constexpr std::array<std::size_t, 4> ids = {0, 1, 2, 4};
    static constexpr std::array<std::size_t, 4> lengths = {0, 2, 4, 8};
    is_single_ = (flags & 0x20) != 0;
    has_checksum_ = (flags & 4) != 0;
    length_bytes_ = flags >> 6 == 0 && is_single_ ? 1 : lengths[flags >> 6];
    state_ = state::header;
    expect((is_single_ ? 0 : 1) + ids[flags & 3] + length_bytes_);
  }

  void on_header(std::string_view header) {
    std::optional<std::uint64_t> length;
    if (length_bytes_ > 0) {
      length = little_endian(header.substr(header.size() - length_bytes_));
      if (length_bytes_ == 2) *length += 256;
    }
    std::uint64_t window = length.value_or(0);
    if (!is_single_) {
      const unsigned exponent = byte_at(header, 0) >> 3;
      const unsigned eighths = byte_at(header, 0) & 7;
      window = (std::uint64_t{1} << (10 + exponent)) / 8 * (8 + eighths);
    }
    if (window > largest_zstd_window) {
      return fail(
          error(errc::too_large,
                fmt::format("a zstd frame with a window of {}: the limit is {}",
                            format_bytes(window), format_bytes(largest_zstd_window)))
              .hint("compress it with a smaller window: `zstd --long=27`, or without `--long`"));
    }
    need(std::min(window, length.value_or(window)));
    state_ = state::block;
    expect(3);
  }

  void on_block(std::uint64_t header) {
    constexpr std::uint64_t repeated = 1;
    constexpr std::uint64_t reserved = 3;
    const std::uint64_t kind = header >> 1 & 3;
    const std::uint64_t size = kind == repeated ? 1 : header >> 3;
    if (kind == reserved) return fail("no zstd block begins here");
    if ((header & 1) != 0) return next_frame(size + (has_checksum_ ? 4 : 0));
    expect(3, size);
  }

  state state_ = state::magic;
  bool is_single_ = false;
  bool has_checksum_ = false;
  std::size_t length_bytes_ = 0;
};

// Frames of blocks (LZ4 Frame Format 1.6.2). Old frames end where no block length follows.
class lz4_windows final : public stream_windows {
 public:
  lz4_windows() : stream_windows(compression::lz4) { expect_stream(4); }

 private:
  // LZ4_compressBound() of the 8 MiB in a block of an old frame.
  static constexpr std::uint64_t largest_old_block = (8 << 20) + (8 << 20) / 255 + 16;
  enum class state { magic, skippable, descriptor, header, block, old_block };

  void on_bytes(std::string_view got) override {
    switch (state_) {
      case state::magic:
        return on_magic(little_endian(got));
      case state::skippable:
        return next_frame(little_endian(got));
      case state::descriptor:
        return on_descriptor(byte_at(got, 0), byte_at(got, 1));
      case state::header:
        state_ = state::block;
        return expect(4);
      case state::block:
        return on_block(little_endian(got));
      case state::old_block:
        if (little_endian(got) > largest_old_block) return on_magic(little_endian(got));
        return next_old_block(little_endian(got));
    }
  }

  // No padding precedes a block: its size may begin with a zero byte.
  void next_old_block(std::uint64_t skip_bytes) {
    state_ = state::old_block;
    expect(4, skip_bytes);
    may_end();
  }

  void next_frame(std::uint64_t skip_bytes) {
    state_ = state::magic;
    expect_stream(4, skip_bytes);
  }

  void on_magic(std::uint64_t magic) {
    if (is_skippable(magic)) {
      state_ = state::skippable;
      return expect(4);
    }
    if (magic == 0x184c2102) {
      need(25 << 20);  // a block; one that arrives in pieces is joined, in memory that doubles
      return next_old_block(0);
    }
    if (magic != little_endian(magic_of(compression::lz4))) return fail("no lz4 frame begins here");
    state_ = state::descriptor;
    expect(2);
  }

  void on_descriptor(unsigned flags, unsigned sizes) {
    static constexpr std::array<std::uint64_t, 4> largest = {64 << 10, 256 << 10, 1 << 20, 4 << 20};
    const unsigned code = sizes >> 4 & 7;
    if (code < 4) return fail("an lz4 frame without a size for its blocks");
    block_bytes_ = largest[code - 4];
    need(block_bytes_ * 3 + (64 << 10));
    block_check_bytes_ = (flags & 0x10) != 0 ? 4 : 0;
    check_bytes_ = (flags & 4) != 0 ? 4 : 0;
    state_ = state::header;
    expect(((flags & 8) != 0 ? 8 : 0) + ((flags & 1) != 0 ? 4 : 0) + 1U);
  }

  void on_block(std::uint64_t size) {
    if (size == 0) return next_frame(check_bytes_);
    size &= 0x7fff'ffff;
    if (size > block_bytes_) return fail("an lz4 block that is larger than its frame allows");
    expect(4, size + block_check_bytes_);
  }

  state state_ = state::magic;
  std::uint64_t block_bytes_ = 0;
  std::uint64_t block_check_bytes_ = 0;
  std::uint64_t check_bytes_ = 0;
};

// Blocks of at most 900,000 bytes, four times that in all. They begin and end within bytes, so only
// the decoder finds where a stream ends.
class bzip2_windows final : public stream_windows {
 public:
  bzip2_windows() : stream_windows(compression::bzip2) { expect(1); }

 private:
  void on_bytes(std::string_view /*got*/) override { need(4'000'000); }
};

// For a decoder that takes less than stream_windows::free_bytes, whatever the stream claims, and
// that reports by itself what follows a stream and begins none.
std::unique_ptr<stream_windows> no_windows() {
  return nullptr;
}

template <class Windows>
std::unique_ptr<stream_windows> windows_of() {
  return std::make_unique<Windows>();
}

std::shared_ptr<unpacker> by_zlib(const source_context& context, int /*filter*/) {
  return make_gunzip(context);
}

constexpr auto all = std::to_array<decoder>({
    {compression::gzip, ARCHIVE_FILTER_GZIP, by_zlib, no_windows},
    {compression::bzip2, ARCHIVE_FILTER_BZIP2, make_archive_filter, windows_of<bzip2_windows>},
    {compression::xz, ARCHIVE_FILTER_XZ, make_archive_filter, windows_of<xz_windows>},
    {compression::zstd, ARCHIVE_FILTER_ZSTD, make_archive_filter, windows_of<zstd_windows>},
    {compression::lz4, ARCHIVE_FILTER_LZ4, make_archive_filter, windows_of<lz4_windows>},
    {compression::lzw, ARCHIVE_FILTER_COMPRESS, make_archive_filter, no_windows},
});
static_assert(std::ranges::equal(all, known_compressions, {}, &decoder::how,
                                 &known_compression::how),
              "each known compression has a decoder, in the same order");
static_assert(std::ranges::none_of(all,
                                   [](const decoder& d) {
                                     return d.make == nullptr || d.windows == nullptr;
                                   }),
              "each decoder says which windows its streams have, or no_windows");

}  // namespace

const decoder& decoder_of(compression how) {
  const auto* const found = std::ranges::find(all, how, &decoder::how);
  return all.at(static_cast<std::size_t>(found - all.begin()));
}

}  // namespace millrace
