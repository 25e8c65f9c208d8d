#pragma once

#include <memory>

#include "engine/channel.h"
#include "io/source.h"

namespace millrace {

// A source whose bytes are produced by a coroutine that runs ahead of the reader: the producer
// pushes slices into `ahead`, and closes it after the last or fails it.
class read_ahead_source final : public byte_source {
 public:
  using queue = channel<bytes>;

  explicit read_ahead_source(std::shared_ptr<queue> ahead) : ahead_(std::move(ahead)) {}

  // The producer ends with this source.
  void produced_by(scope::task producer) { producer_ = std::move(producer); }

  awaitable<result<bytes>> read() override {
    auto next = co_await ahead_->pop();
    if (!next) co_return next.error();
    co_return *next ? std::move(**next) : bytes();
  }

 private:
  std::shared_ptr<queue> ahead_;
  scope::task producer_;
};

}  // namespace millrace
