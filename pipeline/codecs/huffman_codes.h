#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace millrace {

// Always inlined, so that state read and written for every symbol stays in registers: passing its
// address to a call would force it into memory.
#define MILLRACE_INLINE [[gnu::always_inline]] inline

// The value coded by `size` bits, 1 to 15 (T.81, F.2.2.1).
constexpr int value_of(unsigned bits, unsigned size) {
  const auto value = static_cast<int>(bits);
  return bits >> (size - 1) != 0 ? value : value - (1 << size) + 1;
}

// Reads the bits of a JPEG's entropy-coded data, without the stuffed bytes. The data ends at a
// marker or at the end of the file; after it, reads zeros without end. The file must outlive the
// reader.
class bit_reader {
 public:
  bit_reader() = default;
  bit_reader(const std::uint8_t* begin, const std::uint8_t* end) : next_(begin), end_(end) {}

  // Bits available after fill(). A code and its value have at most 31.
  static constexpr unsigned filled = 52;

  MILLRACE_INLINE void fill() {
    if (end_ - next_ >= 8) [[likely]] {
      std::uint64_t word = 0;
      std::memcpy(&word, next_, sizeof word);
      if constexpr (std::endian::native == std::endian::little) word = __builtin_bswap64(word);
      constexpr std::uint64_t ones = 0x0101010101010101;
      const bool has_ff = ((~word - ones) & word & (ones << 7)) != 0;
      if (!has_ff) [[likely]] {
        held_ |= word >> count_;
        const unsigned bytes = (63 - count_) / 8;
        next_ += bytes;
        count_ += bytes * 8;
        return;
      }
    }
    if (count_ < filled) *this = filled_by_bytes(*this);
  }

  std::uint64_t top(unsigned bits) const { return held_ >> (64 - bits); }
  // At most as many as are available.
  MILLRACE_INLINE void drop(unsigned bits) {
    held_ <<= bits % 64;  // the modulo compiles to nothing
    count_ -= bits;
  }
  // Reads a value of 1 to 15 bits.
  MILLRACE_INLINE int value(unsigned size) {
    const auto bits = static_cast<unsigned>(top(size));
    drop(size);
    return value_of(bits, size);
  }

  // Whether more bits were taken than the data has, or the file ends where a marker should be.
  bool overrun() const { return count_ < zeros_ || end_ - next_ < 2; }
  // Continues after restart marker `number`. False if something else comes next.
  bool skip_restart_marker(unsigned number) {
    if (count_ - zeros_ >= 8 || end_ - next_ < 2) return false;
    if (next_[0] != 0xff || next_[1] != 0xd0 + number) return false;
    *this = bit_reader(next_ + 2, end_);
    return true;
  }

 private:
  static bit_reader filled_by_bytes(bit_reader bits);

  std::uint64_t held_ = 0;  // the next bits, from the top; past `count_`, perhaps a part of *next_
  unsigned count_ = 0;
  unsigned zeros_ = 0;  // padding: the last bits of `count_`
  const std::uint8_t* next_ = nullptr;
  const std::uint8_t* end_ = nullptr;
};

inline constexpr unsigned look_up_bits = 10;
inline constexpr std::size_t look_ups = std::size_t{1} << look_up_bits;

// The result of looking up `look_up_bits` bits: a code, with its value if both fit into those bits.
struct symbol {
  enum kinds : std::uint8_t { with_value, without_value, end_of_block, not_found };

  std::uint8_t bits = 0;  // to drop
  std::uint8_t run : 6 = 0;
  std::uint8_t kind : 2 = not_found;
  std::int16_t value = 0;  // without_value: the size of the value
};

// One or two symbols, where their values are not needed.
struct symbols {
  std::uint8_t bits = 0;        // to drop, including the values; 0: not found
  std::uint8_t places : 7 = 0;  // coefficients taken, by runs and values
  std::uint8_t ends : 1 = 0;    // the block ends here
};

// The codes of one Huffman table of a JPEG, as DHT defines it (T.81, annex C). One thread at a
// time.
class code_table {
 public:
  // `counts` has the number of codes of each length (from [1] on), `bytes` their symbols. Does
  // nothing if the table already has these codes. look_up_two() may be used only with `in_twos`.
  // False if they are not a prefix code.
  bool assign(std::span<const std::uint8_t, 17> counts, std::span<const std::uint8_t, 256> bytes,
              bool in_twos);

  const symbol& look_up(const bit_reader& bits) const { return one_[bits.top(look_up_bits)]; }
  const symbols& look_up_two(const bit_reader& bits) const { return two_[bits.top(look_up_bits)]; }
  // Finds a code longer than look_up_bits: drops it from `bits` and returns its symbol; -1 if there
  // is none.
  MILLRACE_INLINE int find_long(bit_reader& bits) const;

 private:
  void add(unsigned code, unsigned length, unsigned byte);
  void combine();

  std::array<symbol, look_ups> one_;
  std::array<symbols, look_ups> two_;
  std::array<unsigned, 17> limit_{};   // of each length, one past the last code
  std::array<unsigned, 17> offset_{};  // added to a code: the index of its symbol, modulo 2^32
  std::array<std::uint8_t, 17> counts_{};
  std::array<std::uint8_t, 256> bytes_{};
  bool assigned_ = false;
};

inline int code_table::find_long(bit_reader& bits) const {
  for (unsigned length = look_up_bits + 1; length <= 16; ++length) {
    const auto code = static_cast<unsigned>(bits.top(length));
    if (code >= limit_[length]) continue;
    bits.drop(length);
    return bytes_[code + offset_[length]];
  }
  return -1;
}

}  // namespace millrace
