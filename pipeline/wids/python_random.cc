#include "pipeline/wids/python_random.h"

#include <bit>

namespace millrace {
namespace {

constexpr std::size_t shift = 397;
constexpr std::uint32_t upper = 0x80000000U;
constexpr std::uint32_t lower = 0x7fffffffU;
constexpr std::uint32_t matrix = 0x9908b0dfU;

}  // namespace

python_random::python_random(std::int64_t seed) {
  const std::uint64_t magnitude =
      seed < 0 ? ~static_cast<std::uint64_t>(seed) + 1 : static_cast<std::uint64_t>(seed);
  const std::array key{static_cast<std::uint32_t>(magnitude),
                       static_cast<std::uint32_t>(magnitude >> 32)};
  const std::size_t length = key[1] != 0 ? 2 : 1;
  auto& s = state_;
  s[0] = 19650218U;
  for (std::size_t i = 1; i < words; ++i) {
    s[i] = 1812433253U * (s[i - 1] ^ (s[i - 1] >> 30)) + static_cast<std::uint32_t>(i);
  }
  std::size_t i = 1;
  const auto step = [&] {
    if (++i < words) return;
    s[0] = s[words - 1];
    i = 1;
  };
  for (std::size_t k = 0; k < words; ++k) {
    const std::size_t j = k % length;
    s[i] = (s[i] ^ ((s[i - 1] ^ (s[i - 1] >> 30)) * 1664525U)) + key.at(j) +
           static_cast<std::uint32_t>(j);
    step();
  }
  for (std::size_t k = 0; k < words - 1; ++k) {
    s[i] = (s[i] ^ ((s[i - 1] ^ (s[i - 1] >> 30)) * 1566083941U)) - static_cast<std::uint32_t>(i);
    step();
  }
  s[0] = upper;
}

void python_random::twist() {
  auto& s = state_;
  for (std::size_t k = 0; k < words; ++k) {
    const std::uint32_t y = (s[k] & upper) | (s[(k + 1) % words] & lower);
    s[k] = s[(k + shift) % words] ^ (y >> 1) ^ ((y & 1) != 0 ? matrix : 0);
  }
  at_ = 0;
}

std::uint32_t python_random::next_u32() {
  if (at_ == words) twist();
  std::uint32_t y = state_[at_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680U;
  y ^= (y << 15) & 0xefc60000U;
  return y ^ (y >> 18);
}

std::uint64_t python_random::getrandbits(int bits) {
  if (bits <= 32) return next_u32() >> (32 - bits);
  const std::uint64_t low = next_u32();
  return low | static_cast<std::uint64_t>(next_u32() >> (64 - bits)) << 32;
}

std::uint64_t python_random::below(std::uint64_t n) {
  const auto bits = static_cast<int>(std::bit_width(n));
  std::uint64_t r = getrandbits(bits);
  while (r >= n) r = getrandbits(bits);
  return r;
}

double python_random::random() {
  const double a = next_u32() >> 5;
  const double b = next_u32() >> 6;
  return (a * 0x1p26 + b) / 0x1p53;
}

}  // namespace millrace
