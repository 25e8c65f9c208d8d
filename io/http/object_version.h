#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/http/message.h"
#include "io/http/object_digest.h"

namespace millrace {

// The attributes that tell one version of an object from another, as far as the server gives them.
struct object_version {
  std::optional<std::uint64_t> total;
  std::optional<std::string> etag;
  std::optional<std::string> last_modified;
  std::optional<expected_digest> digest = std::nullopt;

  // Whether another version of the same length would be noticed.
  bool is_known() const { return etag || last_modified || digest; }
  // What a request names to get a part of this version alone, in If-Range.
  std::optional<std::string> name_to_ask_by() const;
  bool can_be_asked_for() const { return name_to_ask_by().has_value(); }
  // A weak ETag cannot be asked by, but what comes can be compared by it.
  bool can_be_compared() const { return etag || last_modified; }
  // Whether an answer is of this version; lengths are not looked at.
  bool fits(const response_head& head) const;
  // Likewise, of a refusal, which may name nothing that it is of.
  bool may_fit(const response_head& head) const;
  // What the answer's head says of it, but for the length.
  void learn(const response_head& head);
};

}  // namespace millrace
