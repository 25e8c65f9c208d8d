#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

struct http_field {
  std::string name;
  std::string value;
  bool operator==(const http_field&) const = default;
};
using http_fields = std::vector<http_field>;

bool equal_ignoring_case(std::string_view a, std::string_view b);  // of ASCII

// Whether a field may be called so: a token (RFC 9110, 5.6.2).
bool is_field_name(std::string_view name);

// The value of the first field of that name, in whatever case; nullopt where there is none.
std::optional<std::string> find_field(const http_fields& fields, std::string_view name);

// The value of a validator (ETag, Last-Modified) tells one version of an object from another, and a
// request can carry it: not one that is empty or blank, or has a control byte in it.
bool is_validator(std::string_view value);

// The head of a response.
struct response_head {
  int status = 0;
  std::optional<std::uint64_t> content_length;
  http_fields fields;
  bool from_private = false;  // of a server at an address of is_private_address()

  std::optional<std::string> field(std::string_view name) const { return find_field(fields, name); }
};

}  // namespace millrace
