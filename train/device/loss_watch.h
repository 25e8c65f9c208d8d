#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace millrace {

// Checks on the device whether the losses of a run are finite, so that the host waits only when it
// asks. One thread.
class loss_watch {
 public:
  explicit loss_watch(c10::Device device);

  // Adds the loss of the next step, a scalar on the device, without waiting for it.
  void add(const at::Tensor& loss);

  // The number of losses before the first that is not finite, or of all losses. Waits for the
  // device.
  std::int64_t finite() const;
  std::int64_t seen() const { return seen_; }

 private:
  at::Tensor taint_;   // 0; NaN from the first loss that is not finite
  at::Tensor finite_;  // losses before that one
  std::int64_t seen_ = 0;
};

}  // namespace millrace
