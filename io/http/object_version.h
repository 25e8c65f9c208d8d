#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/http/message.h"
#include "io/http/object_digest.h"

namespace millrace {

// The attributes that distinguish versions of an object, as far as the server sends them.
struct object_version {
  std::optional<std::uint64_t> total;
  std::optional<std::string> etag;
  std::optional<std::string> last_modified;
  std::optional<expected_digest> digest = std::nullopt;

  // Whether another version of the same length would be noticed.
  bool is_known() const { return etag || last_modified || digest; }
  // The value for If-Range, by which a request gets a part of this version only.
  std::optional<std::string> name_to_ask_by() const;
  bool can_be_asked_for() const { return name_to_ask_by().has_value(); }
  // A weak ETag cannot be used in a request, but answers can be compared by it.
  bool can_be_compared() const { return etag || last_modified; }
  // Whether an answer is of this version; does not compare lengths.
  bool fits(const response_head& head) const;
  // The same for a refusal, which may not identify its version.
  bool may_fit(const response_head& head) const;
  // Takes over the head's attributes, except the length.
  void learn(const response_head& head);
};

}  // namespace millrace
