#include "io/http/object_digest.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/words.h"

namespace millrace {
namespace {

std::size_t digest_bytes(hash_algorithm algorithm) {
  switch (algorithm) {
    case hash_algorithm::md5:
      return 16;
    case hash_algorithm::sha1:
      return 20;
    case hash_algorithm::sha256:
      return 32;
    case hash_algorithm::crc32c:
      return 4;
  }
  return 0;
}

// The member called `name` of "crc32c=AAAAAA==,md5=..." or "sha-256=:...:, ...".
std::optional<std::string> member(std::string_view list, std::string_view name) {
  for (const std::string& part : split(list, ',')) {
    const std::string_view item = trimmed(part);
    if (!item.starts_with(name) || item.size() <= name.size() || item[name.size()] != '=') continue;
    std::string_view value = item.substr(name.size() + 1);
    if (value.size() >= 2 && value.front() == ':' && value.back() == ':') {
      value = value.substr(1, value.size() - 2);
    }
    return std::string(value);
  }
  return std::nullopt;
}

struct claim {
  hash_algorithm algorithm;
  const char* field;
  const char* member;  // null: the field is the digest
  bool of_body;        // of the answer's body rather than of the object
};

// The cheapest first.
constexpr claim claims[] = {
    // For a part of an object (206), S3 may send the digest of that part only.
    {hash_algorithm::crc32c, "x-amz-checksum-crc32c", nullptr, true},
    {hash_algorithm::crc32c, "x-goog-hash", "crc32c", false},
    {hash_algorithm::crc32c, "repr-digest", "crc32c", false},
    {hash_algorithm::sha256, "repr-digest", "sha-256", false},
    {hash_algorithm::sha256, "content-digest", "sha-256", true},
    {hash_algorithm::md5, "content-md5", nullptr, true},
    {hash_algorithm::md5, "x-goog-hash", "md5", false},
    {hash_algorithm::md5, "repr-digest", "md5", false},
};

}  // namespace

std::optional<expected_digest> digest_in(const response_head& head) {
  for (const claim& c : claims) {
    if (c.of_body && head.status != 200) continue;
    // Google's hash is of the stored bytes, which may be compressed.
    if (std::string_view(c.field) == "x-goog-hash" &&
        head.field("x-goog-stored-content-encoding").value_or("identity") != "identity") {
      continue;
    }
    // An object may have several such fields.
    for (const http_field& f : head.fields) {
      if (!equal_ignoring_case(f.name, c.field)) continue;
      const auto text = c.member == nullptr ? std::optional(f.value) : member(f.value, c.member);
      const auto raw =
          text ? base64_decoded(*text) : std::nullopt;  // "...-3": of parts, not of the whole
      if (raw && raw->size() == digest_bytes(c.algorithm))
        return expected_digest{c.algorithm, *raw, c.field};
    }
  }
  return std::nullopt;
}

result<void> digest_check::finish() {
  const std::string found = so_far_.finish();
  if (found == expected_.value) return {};
  return error(errc::integrity,
               fmt::format("the bytes do not have the digest that {} says: {} instead of {}",
                           expected_.source, hex(found), hex(expected_.value)));
}

}  // namespace millrace
