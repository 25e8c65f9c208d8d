#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <optional>

#include "train/models/safetensors.h"

namespace millrace {

// Copies of tensors as they are now, for another thread: made on their device, so that work that
// changes them goes on at once, and brought to memory there.
class tensor_snapshot {
 public:
  // Tensors of one device, and of memory. On a GPU the copies are made in the current stream.
  explicit tensor_snapshot(const tensor_dict& of);

  // The copies, in memory; once. On a GPU they come by way of pinned memory and a stream of their
  // own, for which only the calling thread waits.
  tensor_dict on_host();

 private:
  tensor_dict copies_;
  c10::Device device_ = c10::kCPU;
  std::optional<c10::Event> copied_;  // on a GPU
};

}  // namespace millrace
