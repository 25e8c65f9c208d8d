#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace millrace {

// The value of an option as messages show it.
std::string option_text(std::int64_t value);
std::string option_text(std::uint64_t value);
std::string option_text(double value);
std::string option_text(std::chrono::milliseconds value);
std::string option_text(int value);

// Throws `failure` (usage): "VALUE is out of range; NAME takes LEAST to MOST". Programs with flags
// replace names by flags in hints.
[[noreturn]] void refuse_option(std::string_view name, const std::string& value,
                                const std::string& allowed);

// Throws `failure` (usage), naming value and range, for a value outside [least, most], or NaN.
// `name` is as programs write it: "http_options.attempts".
template <class N>
void check_option(std::string_view name, N given, std::type_identity_t<N> least,
                  std::type_identity_t<N> most) {
  if (given >= least && given <= most) return;
  refuse_option(name, option_text(given), option_text(least) + " to " + option_text(most));
}
// The same, but 0 is allowed, and `zero` says what it means.
template <class N>
void check_option_or_0(std::string_view name, N given, std::type_identity_t<N> least,
                       std::type_identity_t<N> most, const char* zero = "chosen by millrace") {
  if (given == 0 || (given >= least && given <= most)) return;
  refuse_option(
      name, option_text(given),
      std::string("0 (") + zero + "), or " + option_text(least) + " to " + option_text(most));
}

}  // namespace millrace
