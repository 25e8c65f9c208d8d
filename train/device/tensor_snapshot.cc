#include "train/device/tensor_snapshot.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <utility>

namespace millrace {

tensor_snapshot::tensor_snapshot(const tensor_dict& of) {
  const torch::NoGradGuard no_grad;
  try {
    for (const auto& [name, tensor] : of) {
      copies_[name] = tensor.detach().clone();
      if (tensor.is_cuda()) device_ = tensor.device();
    }
  } catch (const c10::OutOfMemoryError&) {
    // The device has no room for copies: the host waits for them.
    for (const auto& [name, tensor] : of) {
      copies_[name] = tensor.detach().to(c10::kCPU, /*non_blocking=*/false, /*copy=*/true);
    }
    return;
  }
  if (!device_.is_cuda()) return;
  copied_.emplace(device_.type());
  copied_->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

tensor_dict tensor_snapshot::on_host() {
  tensor_dict copies = std::exchange(copies_, {});
  if (!copied_) return copies;
  const torch::NoGradGuard no_grad;
  const c10::Stream side =
      c10::impl::VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_);
  const c10::StreamGuard on_side(side);
  copied_->block(side);
  tensor_dict out;
  for (const auto& [name, tensor] : copies) {
    const auto pinned = tensor.options().device(c10::kCPU).pinned_memory(true);
    out[name] = torch::empty_strided(tensor.sizes(), tensor.strides(), pinned);
    out[name].copy_(tensor, /*non_blocking=*/true);
  }
  c10::Event done(device_.type());
  done.record(side);
  done.synchronize();
  return out;
}

}  // namespace millrace
