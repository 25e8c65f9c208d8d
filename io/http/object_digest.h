#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/hashes.h"
#include "io/http/message.h"

namespace millrace {

// The digest that an object should have, as raw bytes.
struct expected_digest {
  hash_algorithm algorithm;
  std::string value;
  std::string source;  // "x-goog-hash": the field that states it
};

// The digest of the whole object by the head of an answer: Repr-Digest (RFC 9530),
// x-amz-checksum-crc32c, x-goog-hash and, in answers with the whole object, Content-MD5 and
// Content-Digest. Chooses the cheapest; nullopt if there is none. Pure.
std::optional<expected_digest> digest_in(const response_head& head);

// Checks one object whose bytes arrive in order.
class digest_check {
 public:
  explicit digest_check(expected_digest expected)
      : expected_(std::move(expected)), so_far_(expected_.algorithm) {}
  void add(std::span<const std::byte> data) { so_far_.add(data); }
  // Fails with `integrity`.
  result<void> finish();

 private:
  expected_digest expected_;
  hasher so_far_;
};

}  // namespace millrace
