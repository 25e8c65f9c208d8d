#include "pipeline/codecs/huffman_codes.h"

#include <algorithm>

namespace millrace {

[[gnu::noinline]] bit_reader bit_reader::filled_by_bytes(bit_reader bits) {
  while (bits.count_ <= 55) {
    const std::uint8_t* next = bits.next_;
    const bool stuffed = bits.end_ - next >= 2 && next[0] == 0xff && next[1] == 0;
    if (next == bits.end_ || (*next == 0xff && !stuffed)) {
      bits.zeros_ += 63 - bits.count_;
      bits.count_ = 63;
      break;
    }
    bits.held_ |= std::uint64_t{*next} << (56 - bits.count_);
    bits.count_ += 8;
    bits.next_ += stuffed ? 2 : 1;
  }
  return bits;
}

bool code_table::assign(std::span<const std::uint8_t, 17> counts,
                        std::span<const std::uint8_t, 256> bytes, bool in_twos) {
  if (assigned_ && std::ranges::equal(counts, counts_) && std::ranges::equal(bytes, bytes_)) {
    return true;
  }
  assigned_ = false;
  std::ranges::copy(counts, counts_.begin());
  std::ranges::copy(bytes, bytes_.begin());
  one_.fill({});
  unsigned code = 0;
  unsigned place = 0;
  for (unsigned length = 1; length <= 16; ++length) {
    const unsigned count = counts_[length];
    if (code + count > 1U << length || place + count > 256) return false;
    offset_[length] = place - code;
    for (unsigned i = 0; i < count; ++i) add(code++, length, bytes_[place++]);
    limit_[length] = code;
    code <<= 1;
  }
  if (in_twos) combine();
  assigned_ = true;
  return true;
}

// Enters a code at every index that begins with it.
void code_table::add(unsigned code, unsigned length, unsigned byte) {
  if (length > look_up_bits) return;
  const unsigned size = byte & 15;
  const unsigned bits_after = look_up_bits - length;
  symbol s{.bits = static_cast<std::uint8_t>(length), .run = static_cast<std::uint8_t>(byte >> 4)};
  symbol* to = &one_[code << bits_after];
  if (size == 0 || size > bits_after) {
    const auto without = size == 0 ? symbol::end_of_block : symbol::without_value;
    s.kind = size == 0 && s.run == 15 ? symbol::with_value : without;
    s.value = static_cast<std::int16_t>(size);
    std::fill_n(to, std::size_t{1} << bits_after, s);
    return;
  }
  s.kind = symbol::with_value;
  s.bits = static_cast<std::uint8_t>(length + size);
  const std::size_t each = std::size_t{1} << (bits_after - size);
  for (unsigned value = 0; value < 1U << size; ++value, to += each) {
    s.value = static_cast<std::int16_t>(value_of(value, size));
    std::fill_n(to, each, s);
  }
}

// Combines two codes in one entry if both end within the bits looked up.
void code_table::combine() {
  for (std::size_t i = 0; i < look_ups; ++i) {
    const symbol& one = one_[i];
    const symbol& two = one_[(i << one.bits) % look_ups];
    const unsigned size = one.kind == symbol::without_value ? static_cast<unsigned>(one.value) : 0;
    const bool both = one.kind == symbol::with_value &&
                      (two.kind == symbol::with_value || two.kind == symbol::end_of_block) &&
                      one.bits + two.bits <= look_up_bits;
    const unsigned ends = both ? two.kind : one.kind;
    two_[i] = {.bits = static_cast<std::uint8_t>(one.bits + size + (both ? two.bits : 0U)),
               .places = static_cast<std::uint8_t>((one.run + 1U) + (both ? two.run + 1U : 0U)),
               .ends = ends == symbol::end_of_block};
  }
}

}  // namespace millrace
