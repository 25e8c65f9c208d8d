#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/random.h"

namespace millrace::testing {

// Draws of a property test: a function of its seed.
class draws {
 public:
  // Tests that draw different things have numbers of their own.
  explicit draws(int seed, std::uint64_t of_test = 0)
      : random_(static_cast<std::uint64_t>(seed), purpose::fake_data, of_test) {}

  // From `least` to `most`, both included.
  int pick(int least, int most) {
    return least + static_cast<int>(random_.below(static_cast<std::uint32_t>(most - least + 1)));
  }
  int one_of(const std::vector<int>& from) {
    return from[static_cast<std::size_t>(pick(0, static_cast<int>(from.size()) - 1))];
  }
  std::uint32_t bits() { return random_.next_u32(); }

 private:
  random_stream random_;
};

}  // namespace millrace::testing
