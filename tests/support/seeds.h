#pragma once

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace millrace::testing {

// A number from one of the tests' variables; `otherwise` if it is not set. Throws if it is not a
// number. Their names do not begin with MILLRACE_: programs refuse unknown ones.
inline std::uint64_t variable(const char* name, std::uint64_t otherwise) {
  const char* const set = std::getenv(name);
  if (set == nullptr) return otherwise;
  const std::string_view text = set;
  std::uint64_t out = 0;
  const auto [end, why] = std::from_chars(text.begin(), text.end(), out);
  if (why != std::errc() || end != text.end()) {
    throw std::invalid_argument(std::string(name) + "=" + set + " is not a number");
  }
  return out;
}

// Loops over many places (each byte, each item at which a run is saved) visit one in so many: all
// of them, or fewer in slow builds (TEST_EVERY overrides the number).
#ifdef MILLRACE_TEST_EVERY
inline constexpr int one_of_as_many = MILLRACE_TEST_EVERY;
#else
inline constexpr int one_of_as_many = 1;
#endif

inline std::uint64_t every() {
  static const std::uint64_t set = variable("TEST_EVERY", one_of_as_many);
  return set == 0 ? 1 : set;
}

// Whether a loop visits this place; places are counted from 0.
inline bool is_taken(std::uint64_t place) {
  return place % every() == 0;
}

// The seeds of a property test: `quick` of them (fewer if loops visit fewer places), as many as
// TEST_SEEDS says, or the one that TEST_SEED names (a failing test prints its seed).
inline std::vector<std::uint64_t> seeds(std::uint64_t quick) {
  if (std::getenv("TEST_SEED") != nullptr) return {variable("TEST_SEED", 0)};
  std::vector<std::uint64_t> all(variable("TEST_SEEDS", (quick + every() - 1) / every()));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  return all;
}

}  // namespace millrace::testing
