#include "engine/base/random.h"

namespace millrace {
namespace {

constexpr std::uint32_t multiplier_0 = 0xD2511F53;
constexpr std::uint32_t multiplier_1 = 0xCD9E8D57;
constexpr std::uint32_t weyl_0 = 0x9E3779B9;
constexpr std::uint32_t weyl_1 = 0xBB67AE85;

std::uint32_t high_half(std::uint64_t product) {
  return static_cast<std::uint32_t>(product >> 32);
}
std::uint32_t low_half(std::uint64_t product) {
  return static_cast<std::uint32_t>(product);
}

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{multiplier_0} * counter[0];
    const std::uint64_t p1 = std::uint64_t{multiplier_1} * counter[2];
    counter = {high_half(p1) ^ counter[1] ^ key[0], low_half(p1),
               high_half(p0) ^ counter[3] ^ key[1], low_half(p0)};
    key[0] += weyl_0;
    key[1] += weyl_1;
  }
  return counter;
}

random_stream::random_stream(std::uint64_t seed, purpose what, std::uint64_t a, std::uint64_t b)
    : key_{low_half(seed), high_half(seed) ^ (static_cast<std::uint32_t>(what) * weyl_0)},
      stream_{low_half(a), low_half(b), high_half(b)} {}

std::uint32_t random_stream::next_u32() {
  // The counter's first word numbers the blocks of this stream: 2^34 words before it repeats.
  const std::uint64_t number = drawn_ / 4;
  if (number != block_number_) {
    block_ = philox4x32({low_half(number), stream_[0], stream_[1], stream_[2]}, key_);
    block_number_ = number;
  }
  return block_[drawn_++ % 4];
}

std::uint32_t random_stream::below(std::uint32_t n) {
  std::uint64_t product = std::uint64_t{next_u32()} * n;
  if (low_half(product) < n) {
    const std::uint32_t threshold = (0U - n) % n;
    while (low_half(product) < threshold) product = std::uint64_t{next_u32()} * n;
  }
  return high_half(product);
}

double random_stream::uniform() {
  const std::uint64_t high = next_u32() >> 5;
  const std::uint64_t low = next_u32() >> 6;
  return static_cast<double>((high << 26) | low) * 0x1p-53;
}

}  // namespace millrace
