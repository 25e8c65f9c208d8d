#include "train/device/loss_watch.h"

#include <torch/torch.h>

namespace millrace {

loss_watch::loss_watch(c10::Device device)
    : taint_(torch::zeros({}, torch::TensorOptions().dtype(torch::kFloat32).device(device))),
      finite_(torch::zeros({}, torch::TensorOptions().dtype(torch::kInt64).device(device))) {}

void loss_watch::add(const at::Tensor& loss) {
  const torch::NoGradGuard no_grad;
  taint_ += loss * 0;  // NaN for NaN and for infinity
  finite_ += taint_.eq(0);
  ++seen_;
}

std::int64_t loss_watch::finite() const {
  return finite_.item<std::int64_t>();
}

}  // namespace millrace
