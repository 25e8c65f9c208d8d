#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// A header field of a request or a response.
struct http_field {
  std::string name;   // a token; case is ignored when fields are found
  std::string value;  // as sent
  bool operator==(const http_field&) const = default;
};
// In the order in which they were sent. A name may occur several times.
using http_fields = std::vector<http_field>;

// Compares ASCII letters without their case.
bool equal_ignoring_case(std::string_view a, std::string_view b);

// Whether `name` is a valid field name: a token (RFC 9110, 5.6.2).
bool is_field_name(std::string_view name);

// The value of the first field of that name, whose case is ignored; nullopt if there is none.
std::optional<std::string> find_field(const http_fields& fields, std::string_view name);

// Whether a validator's value (ETag, Last-Modified) distinguishes versions of an object and can be
// sent in a request: it is neither empty nor blank, and has no control byte.
bool is_validator(std::string_view value);

// The head of a response.
struct response_head {
  int status = 0;                               // 200
  std::optional<std::uint64_t> content_length;  // bytes of the body; nullopt: not announced
  http_fields fields;                           // of the head
  bool from_private = false;                    // the server's address is_private_address()

  // As find_field().
  std::optional<std::string> field(std::string_view name) const { return find_field(fields, name); }
};

}  // namespace millrace
