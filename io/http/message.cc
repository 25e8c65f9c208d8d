#include "io/http/message.h"

#include <algorithm>

#include "engine/base/words.h"

namespace millrace {

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b,
                            [](char one, char other) { return lowered(one) == lowered(other); });
}

bool is_field_name(std::string_view name) {
  const auto is_of_token = [](char c) {
    const bool is_letter = lowered(c) >= 'a' && lowered(c) <= 'z';
    const bool is_digit = c >= '0' && c <= '9';
    return is_letter || is_digit ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  };
  return !name.empty() && std::ranges::all_of(name, is_of_token);
}

bool is_validator(std::string_view value) {
  const auto is_control = [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7f;
  };
  return value.find_first_not_of(' ') != value.npos && std::ranges::none_of(value, is_control);
}

std::optional<std::string> find_field(const http_fields& fields, std::string_view name) {
  const auto found = std::ranges::find_if(
      fields, [&](const http_field& f) { return equal_ignoring_case(f.name, name); });
  return found == fields.end() ? std::nullopt : std::optional(found->value);
}

}  // namespace millrace
