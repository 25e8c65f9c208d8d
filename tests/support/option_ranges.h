#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <regex>
#include <string>
#include <type_traits>

#include "engine/base/result.h"
#include "pipeline/run/option_words.h"
#include "tests/support/watchdog.h"

namespace millrace::testing {

// A number, for functions that take one.
struct one_number {
  std::int64_t n = 3;
};
template <class F>
void members(one_number& o, F& f) {
  f("", o.n);
}

// The option that may be named in place of this one, because its range depends on it.
inline std::string partner_of(const std::string& name) {
  if (name.starts_with("most_")) return "least_" + name.substr(5);
  return name == "raw_width"    ? "raw_height"
         : name == "raw_height" ? "raw_width"
         : name == "from"       ? "growing_size"
                                : name;
}

inline constexpr int values = 7;

// The n-th value to try in place of `usual`.
template <class N>
N extreme(int n, N usual) {
  using limits = std::numeric_limits<N>;
  if constexpr (std::is_floating_point_v<N>) {
    const N all[values] = {
        -limits::max(),     -1, 0, limits::quiet_NaN(), limits::infinity(), limits::max(),
        -limits::infinity()};
    return all[n];
  } else {
    const N all[values] = {limits::min(),     static_cast<N>(-1), 0, 1, limits::max(),
                           limits::max() - 1, limits::max() / 2};
    static_cast<void>(usual);
    return all[n];
  }
}
inline std::chrono::milliseconds extreme(int n, std::chrono::milliseconds usual) {
  return std::chrono::milliseconds(extreme(n, usual.count()));
}
inline std::optional<int> extreme(int n, std::optional<int> /*usual*/) {
  return extreme(n, 1);
}

// Sets one member to an extreme value.
struct one_member {
  int wanted;
  int value;
  int at = 0;
  std::string name = {};
  std::string said = {};

  template <class N>
  void operator()(const char* of, N& member) {
    if (at++ != wanted) return;
    member = extreme(value, member);
    name = of;
    if constexpr (std::is_arithmetic_v<N>) {
      said = fmt::format("{} = {}", of, member);
    } else {
      said = fmt::format("{}, value {}", of, value);
    }
  }
};

// Every number among the options, whatever its value, either works or is refused by name. `use`
// runs something with the options. members(options, f) calls f(name, member) for each number; it
// lists them by structured bindings, which do not compile if a member is added: add it there, and
// decide on its range where the options are checked.
template <class O, class Use, class Members>
void expect_served_or_refused(const O& usual, Use use, Members members) {
  int tried = 0;
  for (int member = 0;; ++member) {
    for (int value = 0; value < values; ++value) {
      O with = usual;
      one_member change{member, value};
      members(with, change);
      if (change.said.empty()) {
        EXPECT_GT(tried, 0);
        return;
      }
      ++tried;
      try {
        bounded(change.said, [&] { use(with); });
      } catch (const failure& f) {
        EXPECT_TRUE(f.kind() == errc::usage || f.kind() == errc::no_memory)
            << change.said << ": " << f.what();
        const std::string said = f.why().message();
        EXPECT_TRUE(said.find(change.name) != std::string::npos ||
                    said.find(partner_of(change.name)) != std::string::npos)
            << change.said << ": " << said;
        const std::string words = in_program_words(said, {});
        EXPECT_FALSE(std::regex_search(words, std::regex("[a-z]_[a-z]+[.:]+[a-z]")))
            << "programs would name a field of C++: " << words;
      } catch (const std::exception& e) {
        ADD_FAILURE() << change.said << ": " << e.what();
      }
    }
  }
}

}  // namespace millrace::testing
