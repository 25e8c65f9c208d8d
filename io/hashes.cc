#include "io/hashes.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>

#include <array>
#include <cstring>
#include <new>

namespace millrace {
namespace {

using context_ptr = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

context_ptr new_context() {
  context_ptr made(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  if (!made) throw std::bad_alloc();
  return made;
}

// A digest that cannot be computed must not be returned as an empty one.
void check(bool done, const char* what) {
  if (done) return;
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  if (ERR_GET_REASON(code) == ERR_R_MALLOC_FAILURE) throw std::bad_alloc();
  const char* why = ERR_reason_error_string(code);
  throw failure(error(errc::unsupported, fmt::format("OpenSSL cannot compute {}: {}", what,
                                                     why != nullptr ? why : "no reason given"))
                    .hint("a host in FIPS mode has no MD5; see `openssl list -digest-algorithms`"));
}

const char* name_of(hash_algorithm which) {
  switch (which) {
    case hash_algorithm::md5:
      return "MD5";
    case hash_algorithm::sha1:
      return "SHA-1";
    case hash_algorithm::sha256:
      return "SHA-256";
    case hash_algorithm::crc32c:
      return "CRC-32C";
  }
  return "digest";
}

const EVP_MD* openssl_digest(hash_algorithm which) {
  switch (which) {
    case hash_algorithm::md5:
      return EVP_md5();
    case hash_algorithm::sha1:
      return EVP_sha1();
    case hash_algorithm::sha256:
      return EVP_sha256();
    case hash_algorithm::crc32c:
      return nullptr;
  }
  return nullptr;
}

constexpr std::uint32_t castagnoli = 0x82f63b78;  // bit-reversed

constexpr auto crc_table = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? castagnoli : 0);
    table[i] = crc;
  }
  return table;
}();

std::uint32_t crc_by_table(std::span<const std::byte> data, std::uint32_t crc) {
  for (const std::byte b : data) {
    crc = (crc >> 8) ^ crc_table[(crc ^ static_cast<std::uint32_t>(b)) & 0xff];
  }
  return crc;
}

#ifdef __x86_64__
__attribute__((target("sse4.2"))) std::uint32_t crc_by_instruction(std::span<const std::byte> data,
                                                                   std::uint32_t crc) {
  std::uint64_t wide = crc;
  const std::byte* at = data.data();
  std::size_t left = data.size();
  for (; left >= 8; at += 8, left -= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, 8);
    wide = __builtin_ia32_crc32di(wide, word);
  }
  return crc_by_table({at, left}, static_cast<std::uint32_t>(wide));
}
#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t before) {
#ifdef __x86_64__
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return ~crc_by_instruction(data, ~before);
#endif
  return ~crc_by_table(data, ~before);
}

struct hasher::state {
  context_ptr context = new_context();
  hash_algorithm which;
  std::uint32_t crc = 0;
};

hasher::hasher(hash_algorithm which) : state_(std::make_unique<state>()) {
  state_->which = which;
  if (which == hash_algorithm::crc32c) return;
  check(EVP_DigestInit_ex(state_->context.get(), openssl_digest(which), nullptr) == 1,
        name_of(which));
}
hasher::~hasher() = default;
hasher::hasher(hasher&&) noexcept = default;
hasher& hasher::operator=(hasher&&) noexcept = default;

void hasher::add(std::span<const std::byte> data) {
  if (state_->which == hash_algorithm::crc32c) {
    state_->crc = crc32c(data, state_->crc);
  } else {
    check(EVP_DigestUpdate(state_->context.get(), data.data(), data.size()) == 1,
          name_of(state_->which));
  }
}

std::string hasher::finish() {
  std::string out;
  if (state_->which == hash_algorithm::crc32c) {
    for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(state_->crc >> shift);
    return out;
  }
  out.resize(EVP_MAX_MD_SIZE);
  unsigned size = 0;
  check(EVP_DigestFinal_ex(state_->context.get(), reinterpret_cast<unsigned char*>(out.data()),
                           &size) == 1,
        name_of(state_->which));
  out.resize(size);
  return out;
}

std::string digest_of(hash_algorithm which, std::string_view text) {
  hasher h(which);
  h.add(text);
  return h.finish();
}

std::string hmac_sha256(std::string_view key, std::string_view text) {
  std::string out(32, '\0');
  unsigned size = 0;
  const auto* made = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                          reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                          reinterpret_cast<unsigned char*>(out.data()), &size);
  check(made != nullptr, "HMAC of SHA-256");
  return out;
}

result<std::string> rsa_sha256(const std::string& private_key_pem, std::string_view text) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> in(
      BIO_new_mem_buf(private_key_pem.data(), static_cast<int>(private_key_pem.size())), BIO_free);
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
      PEM_read_bio_PrivateKey(in.get(), nullptr, nullptr, nullptr), EVP_PKEY_free);
  if (!key) return error(errc::usage, "the private key is not in PEM format");
  const auto context = new_context();
  const auto* data = reinterpret_cast<const unsigned char*>(text.data());
  std::size_t size = 0;
  std::string out;
  if (EVP_DigestSignInit(context.get(), nullptr, EVP_sha256(), nullptr, key.get()) == 1 &&
      EVP_DigestSign(context.get(), nullptr, &size, data, text.size()) == 1) {
    out.resize(size);
    if (EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(out.data()), &size, data,
                       text.size()) == 1) {
      out.resize(size);
      return out;
    }
  }
  return error(errc::usage, "the private key cannot sign");
}

std::string crc_text(std::string_view text) {
  return fmt::format("{:08x}", crc32c(std::as_bytes(std::span(text.data(), text.size()))));
}

std::string hex(std::string_view raw) {
  std::string out;
  for (const char c : raw) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

std::string base64(std::string_view raw) {
  std::string out(4 * ((raw.size() + 2) / 3) + 1, '\0');
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                   reinterpret_cast<const unsigned char*>(raw.data()),
                                   static_cast<int>(raw.size()));
  out.resize(static_cast<std::size_t>(size));
  return out;
}

std::string base64_url(std::string_view raw) {
  std::string out = base64(raw);
  for (char& c : out) c = c == '+' ? '-' : c == '/' ? '_' : c;
  out.erase(std::min(out.find('='), out.size()));
  return out;
}

std::optional<std::string> base64_decoded(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  std::string out(text.size() / 4 * 3, '\0');
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                   reinterpret_cast<const unsigned char*>(text.data()),
                                   static_cast<int>(text.size()));
  if (size < 0) return std::nullopt;
  const auto padding = text.size() - std::min(text.find_last_not_of('=') + 1, text.size());
  if (padding > 2) return std::nullopt;
  out.resize(out.size() - padding);
  return out;
}

}  // namespace millrace
