#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace millrace {

// The number that `text` is as a whole, in decimal notation without blanks or '+'; nullopt: it is
// not one, or does not fit into a T. Pure.
template <class T>
std::optional<T> parsed_number(std::string_view text) {
  T value{};
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_whole = failed == std::errc{} && end == text.data() + text.size();
  return is_whole ? std::optional(value) : std::nullopt;
}

}  // namespace millrace
