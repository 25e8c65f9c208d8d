#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace millrace {

// What these functions hold in registers is read and written for every symbol: none may have its
// address taken by a call.
#define MILLRACE_INLINE [[gnu::always_inline]] inline

// What `size` bits, 1 to 15, say (T.81, F.2.2.1).
constexpr int value_of(unsigned bits, unsigned size) {
  const auto value = static_cast<int>(bits);
  return bits >> (size - 1) != 0 ? value : value - (1 << size) + 1;
}

// The bits of a JPEG's entropy-coded data, stuffed bytes left out. After the data, which a marker
// or the end of the file ends, come zeros without end. The file outlives it.
class bit_reader {
 public:
  bit_reader() = default;
  bit_reader(const std::uint8_t* begin, const std::uint8_t* end) : next_(begin), end_(end) {}

  // Bits that are there after fill(). A code and its value are 31 at most.
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
  // No more than are there.
  MILLRACE_INLINE void drop(unsigned bits) {
    held_ <<= bits % 64;  // which compiles to nothing
    count_ -= bits;
  }
  // A value of 1 to 15 bits.
  MILLRACE_INLINE int value(unsigned size) {
    const auto bits = static_cast<unsigned>(top(size));
    drop(size);
    return value_of(bits, size);
  }

  // Whether bits were taken that the data does not have, or the file ends where a marker should
  // stand.
  bool overrun() const { return count_ < zeros_ || end_ - next_ < 2; }
  // Continues after restart marker `number`. False where something else is next.
  bool skip_restart_marker(unsigned number) {
    if (count_ - zeros_ >= 8 || end_ - next_ < 2) return false;
    if (next_[0] != 0xff || next_[1] != 0xd0 + number) return false;
    *this = bit_reader(next_ + 2, end_);
    return true;
  }

 private:
  static bit_reader filled_by_bytes(bit_reader bits);

  std::uint64_t held_ = 0;  // the next bits, from the top; after `count_` perhaps a part of *next_
  unsigned count_ = 0;
  unsigned zeros_ = 0;  // made up, at the end of `count_`
  const std::uint8_t* next_ = nullptr;
  const std::uint8_t* end_ = nullptr;
};

inline constexpr unsigned look_up_bits = 10;
inline constexpr std::size_t look_ups = std::size_t{1} << look_up_bits;

// What a look-up of that many bits finds: a code, with its value where all of that fits into the
// bits looked up.
struct symbol {
  enum kinds : std::uint8_t { with_value, without_value, end_of_block, not_found };

  std::uint8_t bits = 0;  // to drop
  std::uint8_t run : 6 = 0;
  std::uint8_t kind : 2 = not_found;
  std::int16_t value = 0;  // without_value: the size of it
};

// The same for one symbol or two, where nobody needs the values.
struct symbols {
  std::uint8_t bits = 0;        // to drop, with those of the values; 0: nothing was found
  std::uint8_t places : 7 = 0;  // of the block, taken by their runs and values
  std::uint8_t ends : 1 = 0;    // by the end of the block
};

// The codes of one table of a JPEG, as DHT defines it (T.81, annex C). One thread at a time.
class code_table {
 public:
  // How many codes there are of each length (from [1] on), and their symbols. Does nothing for the
  // table that it is already. look_up_two() is for use only where `in_twos`. False where it is no
  // prefix code.
  bool assign(std::span<const std::uint8_t, 17> counts, std::span<const std::uint8_t, 256> bytes,
              bool in_twos);

  const symbol& look_up(const bit_reader& bits) const { return one_[bits.top(look_up_bits)]; }
  const symbols& look_up_two(const bit_reader& bits) const { return two_[bits.top(look_up_bits)]; }
  // For codes that are longer: the symbol, dropped from `bits`; -1 where there is none.
  MILLRACE_INLINE int find_long(bit_reader& bits) const;

 private:
  void add(unsigned code, unsigned length, unsigned byte);
  void combine();

  std::array<symbol, look_ups> one_;
  std::array<symbols, look_ups> two_;
  std::array<unsigned, 17> limit_{};   // of each length, the code after the last
  std::array<unsigned, 17> offset_{};  // from a code to the place of its symbol, modulo 2^32
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
