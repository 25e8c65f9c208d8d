#include "pipeline/digest.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>

#include "engine/error.h"

namespace millrace {

struct sample_digest::impl {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~impl() { EVP_MD_CTX_free(context); }
  void update(const void* data, std::size_t size) const {
    if (EVP_DigestUpdate(context, data, size) != 1) {
      throw failure(error(errc::internal, "OpenSSL cannot compute a sha256"));
    }
  }
  // With its terminating zero byte.
  void update(const std::string& text) const { update(text.c_str(), text.size() + 1); }
};

sample_digest::sample_digest() : impl_(std::make_unique<impl>()) {
  if (EVP_DigestInit_ex(impl_->context, EVP_sha256(), nullptr) != 1) {
    throw failure(error(errc::internal, "OpenSSL has no sha256"));
  }
}
sample_digest::~sample_digest() = default;

void sample_digest::add(const sample& s) {
  std::vector<const field*> fields;
  fields.reserve(s.fields.size());
  for (const field& f : s.fields) fields.push_back(&f);
  std::ranges::sort(fields, {}, [](const field* f) -> const std::string& { return f->extension; });
  impl_->update(s.key);
  for (const field* f : fields) {
    impl_->update(f->extension);
    std::array<unsigned char, 8> length{};
    for (std::size_t i = 0; i < length.size(); ++i) {
      length[i] = static_cast<unsigned char>(std::uint64_t{f->data.size()} >> (8 * i));
    }
    impl_->update(length.data(), length.size());
    impl_->update(f->data.data(), f->data.size());
  }
}

std::string sample_digest::finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> hash{};
  unsigned size = 0;
  EVP_DigestFinal_ex(impl_->context, hash.data(), &size);
  std::string out;
  for (unsigned i = 0; i < size; ++i) out += fmt::format("{:02x}", hash[i]);
  return out;
}

}  // namespace millrace
