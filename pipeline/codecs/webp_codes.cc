#include "pipeline/codecs/webp_codes.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace {
namespace {

// Source of all formats below: WebP lossless bitstream specification, RFC 9649, sections 2 and 3.

constexpr unsigned longest_code = 15;

// Reads bits, the lowest of a byte first. After the end it reads zeros, and is_over() is true.
class webp_bits {
 public:
  explicit webp_bits(std::span<const std::byte> data) : data_(data) {}

  unsigned read(unsigned count) {
    unsigned value = 0;
    for (unsigned i = 0; i < count; ++i) value |= next() << i;
    return value;
  }
  unsigned next() {
    const std::size_t byte = at_ / 8;
    if (byte >= data_.size()) {
      over_ = true;
      return 0;
    }
    return std::to_integer<unsigned>(data_[byte]) >> (at_++ % 8) & 1;
  }
  bool is_over() const { return over_; }

 private:
  std::span<const std::byte> data_;
  std::size_t at_ = 0;
  bool over_ = false;
};

// A prefix code in its canonical form.
class prefix_code {
 public:
  // False if the lengths (0: the symbol does not occur) are not a complete code.
  bool assign(std::span<const std::uint8_t> lengths) {
    counts_ = {};
    for (const std::uint8_t length : lengths) ++counts_[length];
    counts_[0] = 0;
    symbols_.clear();
    for (unsigned length = 1; length <= longest_code; ++length) {
      if (counts_[length] == 0) continue;
      for (std::size_t s = 0; s < lengths.size(); ++s) {
        if (lengths[s] == length) symbols_.push_back(static_cast<std::uint16_t>(s));
      }
    }
    if (symbols_.size() == 1) return true;  // a code of zero bits
    int open = 1;
    for (unsigned length = 1; length <= longest_code && open >= 0; ++length) {
      open = open * 2 - static_cast<int>(counts_[length]);
    }
    return open == 0;
  }
  bool is_single() const { return symbols_.size() == 1; }

  unsigned read(webp_bits& bits) const {
    if (is_single()) return symbols_.front();
    unsigned code = 0;
    unsigned first = 0;
    unsigned at = 0;
    for (unsigned length = 1; length <= longest_code; ++length) {
      code |= bits.next();
      if (code < first + counts_[length]) return symbols_[at + code - first];
      at += counts_[length];
      first = (first + counts_[length]) << 1;
      code <<= 1;
    }
    return symbols_.back();  // unreachable: a complete code ends above
  }

 private:
  std::array<unsigned, longest_code + 1> counts_{};
  std::vector<std::uint16_t> symbols_;  // by their codes
};

// Reads the lengths of a code's symbols, which are themselves coded.
bool read_lengths(webp_bits& bits, std::span<std::uint8_t> lengths) {
  constexpr std::array<std::uint8_t, 19> order = {17, 18, 0, 1,  2,  3,  4,  5,  16, 6,
                                                  7,  8,  9, 10, 11, 12, 13, 14, 15};
  std::array<std::uint8_t, order.size()> of_lengths{};
  const unsigned given = bits.read(4) + 4;
  for (unsigned i = 0; i < given; ++i)
    of_lengths[order[i]] = static_cast<std::uint8_t>(bits.read(3));
  prefix_code code;
  if (!code.assign(of_lengths)) return false;
  auto left = static_cast<unsigned>(lengths.size());
  if (bits.next() != 0) left = 2 + bits.read(2 + 2 * bits.read(3));
  if (left > lengths.size()) return false;
  constexpr unsigned repeated = 16;  // repeats the last length; the next two symbols repeat zeros
  std::uint8_t before = 8;
  for (std::size_t s = 0; s < lengths.size() && left > 0 && !bits.is_over(); --left) {
    const unsigned length = code.read(bits);
    if (length < repeated) {
      lengths[s++] = static_cast<std::uint8_t>(length);
      if (length != 0) before = static_cast<std::uint8_t>(length);
      continue;
    }
    const unsigned times = length == repeated       ? 3 + bits.read(2)
                           : length == repeated + 1 ? 3 + bits.read(3)
                                                    : 11 + bits.read(7);
    if (times > lengths.size() - s) return false;
    std::fill_n(lengths.begin() + static_cast<std::ptrdiff_t>(s), times,
                length == repeated ? before : std::uint8_t{0});
    s += times;
  }
  return !bits.is_over();
}

bool read_code(webp_bits& bits, std::size_t alphabet, prefix_code& code) {
  constexpr std::size_t least = 256;  // symbols named directly have up to 8 bits
  std::vector<std::uint8_t> lengths(std::max(alphabet, least));
  if (bits.next() != 0) {
    const bool has_two = bits.next() != 0;
    lengths[bits.read(bits.next() != 0 ? 8 : 1)] = 1;
    if (has_two) lengths[bits.read(8)] = 1;
  } else if (!read_lengths(bits, std::span(lengths).first(alphabet))) {
    return false;
  }
  const std::span<const std::uint8_t> used(lengths.data(), alphabet);
  return !bits.is_over() && code.assign(used);
}

constexpr unsigned literals = 256;
constexpr unsigned copies = 24;  // symbols after these refer to the colour cache

// Reads a meta image (one that describes the real one) to its end. Returns the greatest number
// formed by its red and green; nullopt if it is not valid.
std::optional<unsigned> read_image(webp_bits& bits, std::uint64_t width, std::uint64_t height) {
  unsigned cache = 0;
  if (bits.next() != 0) {
    const unsigned cache_bits = bits.read(4);
    if (cache_bits < 1 || cache_bits > 11) return std::nullopt;
    cache = 1U << cache_bits;
  }
  prefix_code green;
  prefix_code red;
  prefix_code blue;
  prefix_code alpha;
  prefix_code distance;
  const bool is_read = read_code(bits, literals + copies + cache, green) &&
                       read_code(bits, literals, red) && read_code(bits, literals, blue) &&
                       read_code(bits, literals, alpha) && read_code(bits, 40, distance);
  if (!is_read) return std::nullopt;
  const auto extra = [&](unsigned symbol) {
    if (symbol < 4) return symbol + 1;
    const unsigned more = (symbol - 2) >> 1;
    return ((2 + (symbol & 1)) << more) + bits.read(more) + 1;
  };
  const bool is_plain =
      green.is_single() && red.is_single() && blue.is_single() && alpha.is_single();
  unsigned greatest = 0;
  for (std::uint64_t left = width * height; left > 0;) {
    if (bits.is_over()) return std::nullopt;
    const unsigned symbol = green.read(bits);
    std::uint64_t done = 1;
    if (symbol < literals) {
      greatest = std::max(greatest, red.read(bits) << 8 | symbol);
      blue.read(bits);
      alpha.read(bits);
      if (is_plain) break;
    } else if (symbol < literals + copies) {
      done = extra(symbol - literals);
      extra(distance.read(bits));
      if (done > left) return std::nullopt;
    }
    // Copied or cached pixels have no new numbers.
    left -= done;
  }
  if (bits.is_over()) return std::nullopt;
  return greatest;
}

std::uint64_t in_squares(std::uint64_t size, unsigned bits) {
  return (size + (std::uint64_t{1} << bits) - 1) >> bits;
}

// The most pixels of meta images that are read: they are read bit by bit.
constexpr std::uint64_t most_read = 8 << 20;

// Reads a stream after its header. Groups beyond the number of squares of pixels are not allocated.
std::optional<webp_codes> codes_in(webp_bits bits, std::uint64_t width, std::uint64_t height) {
  enum transforms : unsigned { predictor, color, subtracted_green, palette };
  std::array<bool, 4> seen{};
  webp_codes found{.groups = 1, .numbers = 1};
  const auto read_squares = [&](unsigned& side) -> std::optional<unsigned> {
    side = bits.read(3) + 2;
    const std::uint64_t across = in_squares(width, side);
    const std::uint64_t down = in_squares(height, side);
    found.pixels += across * down;
    if (found.pixels > most_read) return std::nullopt;
    return read_image(bits, across, down);
  };
  unsigned side = 0;
  while (bits.next() != 0) {
    const unsigned kind = bits.read(2);
    if (std::exchange(seen[kind], true)) return std::nullopt;
    if ((kind == predictor || kind == color) && !read_squares(side)) return std::nullopt;
    if (kind != palette) continue;
    const unsigned colors = bits.read(8) + 1;
    if (!read_image(bits, colors, 1)) return std::nullopt;
    found.pixels += literals;  // the palette is filled up to this size
    width = in_squares(width, colors <= 2 ? 3 : colors <= 4 ? 2 : colors <= 16 ? 1 : 0);
  }
  if (bits.next() != 0) bits.read(4);  // the colour cache of the image itself
  if (bits.next() != 0) {
    const auto greatest = read_squares(side);
    if (!greatest) return std::nullopt;
    found.numbers = std::uint64_t{*greatest} + 1;
    found.groups = std::min(found.numbers, in_squares(width, side) * in_squares(height, side));
  }
  if (bits.is_over()) return std::nullopt;
  return found;
}

}  // namespace

std::optional<webp_codes> codes_of_webp(std::span<const std::byte> image) {
  constexpr unsigned signature = 0x2F;
  webp_bits bits(image);
  if (bits.read(8) != signature) return std::nullopt;
  const std::uint64_t wide = bits.read(14) + 1;
  const std::uint64_t high = bits.read(14) + 1;
  bits.read(1 + 3);  // transparency flag and version
  return codes_in(bits, wide, high);
}

}  // namespace millrace
