#pragma once

#include <array>
#include <cstdint>

namespace millrace {

// Philox4x32-10: four 32-bit words from a 128-bit counter and a 64-bit key, the same on every
// platform. Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3"
// (SC 2011); checked against the published known answers.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key);

// The purpose of a stream of random numbers. Streams of different purposes never share numbers.
enum class purpose : std::uint32_t {
  shard_order = 1,
  shard_draw = 2,
  shuffle = 3,
  augment = 4,
  retry = 5,
  fake_data = 6,
  sampler = 7,
  stage = 8,
  mix = 9,
  window = 10,
  colors = 11,
  mixing = 12,
  device = 13,
};

// A stream of random numbers that is a pure function of (seed, purpose, a, b): nothing is shared
// and position() is all its state. `a` and `b` name the stream within its purpose (epoch and lane,
// epoch and sample position, ...); `a` counts modulo 2^32.
class random_stream {
 public:
  // The stream of (seed, what, a, b), at its beginning.
  random_stream(std::uint64_t seed, purpose what, std::uint64_t a = 0, std::uint64_t b = 0);

  // The next 32 random bits. A stream repeats after 2^34 of them.
  std::uint32_t next_u32();
  // Uniform in [0, n); n > 0. Unbiased (Lemire's multiplication with rejection).
  std::uint32_t below(std::uint32_t n);
  // Uniform in [0, 1), 53 random bits.
  double uniform();
  double uniform(double low, double high) { return low + (high - low) * uniform(); }

  // Words drawn so far; a stream constructed alike and set to this position continues from here.
  std::uint64_t position() const { return drawn_; }
  // Continues after this many words: see position().
  void seek(std::uint64_t words_drawn) { drawn_ = words_drawn; }

 private:
  std::array<std::uint32_t, 2> key_;
  std::array<std::uint32_t, 3> stream_;
  std::uint64_t drawn_ = 0;
  std::array<std::uint32_t, 4> block_{};
  std::uint64_t block_number_ = ~std::uint64_t{0};
};

}  // namespace millrace
