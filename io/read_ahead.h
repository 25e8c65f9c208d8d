#pragma once

#include <memory>
#include <utility>

#include "engine/coroutines/channel.h"
#include "io/source.h"

namespace millrace {

// A source whose bytes are produced by a coroutine that runs ahead of the reader. The producer
// pushes slices into `ahead`, then closes it, or fails it.
class read_ahead_source final : public byte_source {
 public:
  using queue = channel<bytes>;

  explicit read_ahead_source(std::shared_ptr<queue> ahead) : ahead_(std::move(ahead)) {}

  // The producer ends when this source is destroyed.
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
