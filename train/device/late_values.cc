#include "train/device/late_values.h"

#include <torch/torch.h>

#include <utility>

namespace millrace {

late_values::late_values(std::unique_ptr<stream_calls> calls) : calls_(std::move(calls)) {}

late_values late_values::of(c10::Device device) {
  return late_values(make_stream_calls(device, 2 * static_cast<int>(most)));
}

void late_values::push(const at::Tensor& values) {
  begun one{.slot = next_, .on_device = values, .in_memory = values};
  next_ = (next_ + 1) % static_cast<int>(most);
  if (calls_) {
    const auto pinned =
        torch::TensorOptions().dtype(values.dtype()).pinned_memory(values.is_cuda());
    one.in_memory = torch::empty(values.sizes(), pinned);
    calls_->record(computed(one.slot), device_stream::compute);
    calls_->wait(device_stream::copy, computed(one.slot));
    calls_->copy(one.in_memory, one.on_device);
    calls_->record(come(one.slot), device_stream::copy);
  }
  begun_.push_back(std::move(one));
}

std::optional<std::vector<double>> late_values::pop(bool waits) {
  if (begun_.empty()) return std::nullopt;
  const begun& oldest = begun_.front();
  if (calls_ && !calls_->has_passed(come(oldest.slot))) {
    if (!waits) return std::nullopt;
    calls_->wait_on_host(come(oldest.slot));
  }
  const auto* first = oldest.in_memory.data_ptr<double>();
  std::vector<double> out(first, first + oldest.in_memory.numel());
  begun_.pop_front();
  return out;
}

}  // namespace millrace
