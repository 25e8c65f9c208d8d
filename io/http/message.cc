#include "io/http/message.h"

#include <algorithm>

namespace millrace {
namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

}  // namespace

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, {}, lower, lower);
}

std::optional<std::string> find_field(const http_fields& fields, std::string_view name) {
  const auto found = std::ranges::find_if(
      fields, [&](const http_field& f) { return equal_ignoring_case(f.name, name); });
  return found == fields.end() ? std::nullopt : std::optional(found->value);
}

}  // namespace millrace
