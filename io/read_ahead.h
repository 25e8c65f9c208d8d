#pragma once

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/base/units.h"
#include "engine/coroutines/channel.h"
#include "io/source.h"

namespace millrace {

// The sizes of a source's extents: small at first, so that the first samples arrive soon, then each
// twice the previous one, up to the size with the best rate.
class extent_ramp {
 public:
  explicit extent_ramp(std::size_t most) : most_(most), next_(std::min(first, most)) {}
  std::size_t next() { return std::exchange(next_, std::min(2 * next_, most_)); }

 private:
  static constexpr std::size_t first = 256_KiB;
  std::size_t most_;
  std::size_t next_;
};

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
