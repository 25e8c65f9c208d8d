#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "engine/threads/io_thread.h"
#include "engine/threads/offload.h"
#include "io/hashes.h"
#include "io/source.h"
#include "pipeline/plan/run_context.h"

namespace millrace {

// Counts the bytes read and, if asked to, hashes them in the CPU pool.
class counting_source final : public byte_source {
 public:
  counting_source(run_context& run, std::unique_ptr<byte_source> inner, std::uint64_t begin,
                  bool hashes)
      : run_(run), inner_(std::move(inner)), position_(begin) {
    if (hashes) hash_ = std::make_shared<hasher>(hash_algorithm::md5);
  }

  awaitable<result<bytes>> read() override {
    auto piece = co_await inner_->read();
    if (!piece || piece->empty()) co_return piece;
    position_ += piece->size();
    if (!hash_) co_return piece;
    const auto work = [hash = hash_, data = *piece] { hash->add(data.span()); };
    co_await offload(run_.io, run_.threads.cpu(), work);
    co_return piece;
  }
  // Offset in the object, after the last byte returned.
  std::uint64_t position() const { return position_; }
  // Of all bytes returned; empty if they were not hashed.
  std::string md5() { return hash_ ? hex(hash_->finish()) : std::string(); }

 private:
  run_context& run_;
  std::unique_ptr<byte_source> inner_;
  // Shared with work in progress, which may outlive this source.
  std::shared_ptr<hasher> hash_;
  std::uint64_t position_;
};

}  // namespace millrace
