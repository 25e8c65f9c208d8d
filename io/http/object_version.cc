#include "io/http/object_version.h"

#include <utility>

namespace millrace {

std::optional<std::string> object_version::name_to_ask_by() const {
  // A weak ETag must not be used here (RFC 9110, 13.1.5).
  return etag && !etag->starts_with("W/") ? etag : last_modified;
}

bool object_version::fits(const response_head& head) const {
  const auto other_digest = digest_in(head);
  const bool comparable = digest && other_digest && digest->algorithm == other_digest->algorithm;
  if (comparable && digest->value != other_digest->value) return false;
  const auto other_etag = head.field("etag");
  if (etag && other_etag) return *etag == *other_etag;
  const auto modified = head.field("last-modified");
  if (last_modified && modified) return *last_modified == *modified;
  // Lengths are compared elsewhere. An answer to If-Range may omit Last-Modified, but not an ETag
  // (RFC 9110, 15.3.7). Any other answer without a validator cannot be identified.
  const bool by_date = head.status == 206 && last_modified && !etag;
  return comparable || by_date || !is_known();
}

bool object_version::may_fit(const response_head& head) const {
  const auto other_etag = head.field("etag");
  if (etag && other_etag) return *etag == *other_etag;
  const auto modified = head.field("last-modified");
  return !last_modified || !modified || *last_modified == *modified;
}

void object_version::learn(const response_head& head) {
  if (auto now = head.field("etag")) etag = std::move(now);
  if (auto now = head.field("last-modified")) last_modified = std::move(now);
  if (!digest) digest = digest_in(head);
}

}  // namespace millrace
