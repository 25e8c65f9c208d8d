#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/result.h"

namespace millrace {

enum class hash_algorithm { md5, sha1, sha256, crc32c };

// A digest of bytes that arrive in pieces. Digests are raw bytes; a crc32c has four, highest first,
// as object stores write it. One thread at a time. Throws `failure` (unsupported) if the host's
// OpenSSL does not offer the algorithm, such as MD5 in FIPS mode.
class hasher {
 public:
  explicit hasher(hash_algorithm which);
  ~hasher();
  hasher(hasher&&) noexcept;
  hasher& operator=(hasher&&) noexcept;

  void add(std::span<const std::byte> data);
  void add(std::string_view text) { add(std::as_bytes(std::span(text.data(), text.size()))); }
  // Returns the digest; nothing can be added afterwards.
  std::string finish();

 private:
  struct state;
  std::unique_ptr<state> state_;
};

// Both throw as `hasher` does.
std::string digest_of(hash_algorithm which, std::string_view text);
std::string hmac_sha256(std::string_view key, std::string_view text);
// RSASSA-PKCS1-v1_5 with SHA-256, by a private key in PEM: how service accounts sign. Fails with
// `usage` if the key cannot be read.
result<std::string> rsa_sha256(const std::string& private_key_pem, std::string_view text);

// The Castagnoli CRC (RFC 3720, B.4) of `data` appended to bytes whose CRC is `before`. Uses the
// CPU's instruction if it has one.
std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t before = 0);

// The crc32c of a text, as eight hexadecimal digits.
std::string crc_text(std::string_view text);

std::string hex(std::string_view raw);  // lower case
std::string base64(std::string_view raw);
std::string base64_url(std::string_view raw);  // RFC 7515: '-' and '_', no padding
std::optional<std::string> base64_decoded(std::string_view text);

}  // namespace millrace
