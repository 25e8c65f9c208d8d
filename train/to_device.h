#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <deque>
#include <memory>

#include "engine/memory.h"
#include "pipeline/images/image.h"
#include "train/gpu_decoder.h"

namespace millrace {

// A batch in the model's input format: N x 3 x H x W float32, channels_last, normalised with
// ImageNet's mean and deviation; labels int64. On the device. other_labels: of mixed images; else
// not defined.
struct device_batch {
  at::Tensor images;
  at::Tensor labels;
  at::Tensor other_labels;
  double share = 1;  // of what `labels` say
  std::int64_t epoch = 0;
  std::int64_t size() const;
};

// Hands batches to a device: uint8 is copied, and normalised there. On a GPU the copy is
// asynchronous, so the host memory is kept until it is done. One thread.
class to_device {
 public:
  // `decoder`: of images that come encoded; null where none do.
  explicit to_device(c10::Device device, std::unique_ptr<gpu_decoder> decoder = nullptr);
  ~to_device();
  device_batch operator()(host_batch b);
  // Images whose data the device's decoder found damaged.
  std::uint64_t damaged() const { return decoder_ ? decoder_->damaged() : 0; }

 private:
  struct in_flight;
  c10::Device device_;
  std::unique_ptr<gpu_decoder> decoder_;
  at::Tensor scale_;
  at::Tensor shift_;
  std::deque<std::unique_ptr<in_flight>> copying_;
};

// Pinned host memory where there is a GPU; null where there is none.
std::unique_ptr<host_allocator> make_pinned_allocator(c10::Device device);

}  // namespace millrace
