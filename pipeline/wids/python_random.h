#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>

namespace millrace {

// The generator of Python's random.Random(seed), number for number: WebDataset and wids shuffle
// with it. Source: Matsumoto and Nishimura, "Mersenne Twister" (ACM TOMACS 8, 1998), seeded by its
// init_by_array with the 32-bit words of |seed|; CPython's Lib/random.py for what is drawn. One
// thread.
class python_random {
 public:
  // As random.seed(seed).
  explicit python_random(std::int64_t seed);

  // A number whose lowest `bits` (1 to 64) are random: getrandbits().
  std::uint64_t getrandbits(int bits);
  // Uniform in [0, n), n > 0: _randbelow().
  std::uint64_t below(std::uint64_t n);
  // Uniform in [0, 1): random().
  double random();

  // Permutes the items: shuffle().
  template <class T>
  void shuffle(std::span<T> items) {
    for (std::size_t i = items.size(); i > 1; --i) {
      const auto other = static_cast<std::size_t>(below(i));
      std::swap(items[i - 1], items[other]);
    }
  }

 private:
  static constexpr std::size_t words = 624;
  std::uint32_t next_u32();
  void twist();

  std::array<std::uint32_t, words> state_{};
  std::size_t at_ = words;
};

}  // namespace millrace
