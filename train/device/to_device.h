#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <array>
#include <memory>
#include <optional>

#include "pipeline/pixels/image.h"
#include "train/device/gpu_decoder.h"
#include "train/device/stream_calls.h"

namespace millrace {

// A batch in the model's input format, on the device.
struct device_batch {
  // N x 3 x H x W float32, channels_last, normalised by ImageNet's mean and deviation.
  at::Tensor images;
  at::Tensor labels;        // N int64
  at::Tensor other_labels;  // N int64 for mixed images, else undefined
  double share = 1;         // weight of `labels`; `other_labels` have the rest
  std::int64_t epoch = 0;   // of its first image
  // N; 0 without tensors.
  std::int64_t size() const;
};

// Moves batches to a device: copies uint8, and normalises it there. On a GPU the pixels of a batch
// and its labels are one asynchronous copy, on a stream of copies, into one of three slots: the
// next batch comes while the model works on this one, and the host waits only if it is three
// batches ahead. Their memory is kept until they are copied. One thread.
class to_device {
 public:
  // Batches that may be on their way, or in use, at once.
  static constexpr int slots = 3;

  // `decoder`: of images that come encoded; null if none do.
  explicit to_device(c10::Device device, std::unique_ptr<gpu_decoder> decoder = nullptr);
  // With the calls, of 2 x `slots` events, by which it moves data; null: batches are used where
  // they are.
  to_device(c10::Device device, std::unique_ptr<gpu_decoder> decoder,
            std::unique_ptr<stream_calls> calls);
  ~to_device();
  // The batch on the device. On a GPU it may still be on its way: work on the current stream waits
  // for it.
  device_batch operator()(host_batch b);
  // Images whose data the device's decoder found damaged.
  std::uint64_t damaged() const { return decoder_ ? decoder_->damaged() : 0; }

 private:
  struct slot {
    at::Tensor bytes;                // on the device; undefined: never used
    std::optional<host_batch> host;  // while it is copied
  };
  at::Tensor images_of(const at::Tensor& pixels, const host_batch& b);
  device_batch moved(host_batch b);
  void free_copied();
  at::Tensor bytes_on_device(slot& to, int number, const host_batch& b);

  c10::Device device_;
  std::unique_ptr<gpu_decoder> decoder_;
  std::unique_ptr<stream_calls> calls_;
  at::Tensor scale_;
  at::Tensor shift_;
  std::array<slot, slots> slots_;
  int next_ = 0;
};

}  // namespace millrace
