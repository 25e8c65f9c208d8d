#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>

#include "pipeline/pixels/image.h"
#include "pipeline/pixels/options.h"

namespace millrace {

// Decodes the images of a batch that the pool left encoded, by nvJPEG on a GPU, straight into the
// batch on the device. Its inverse transform is not libjpeg-turbo's: pixels are close, not exact.
// One thread.
class gpu_decoder {
 public:
  // Throws `failure` (unsupported) if this build has no nvJPEG, its library is missing, or the
  // device is not a GPU.
  explicit gpu_decoder(c10::Device device);
  ~gpu_decoder();
  gpu_decoder(const gpu_decoder&) = delete;
  gpu_decoder& operator=(const gpu_decoder&) = delete;

  // `images`: N x 3 x H x W float32 on the device, values 0 to 255; writes those that
  // `batch.encoded` names. The CPU decodes images that nvJPEG refuses; damage that it finds is
  // filled, counted, and reported once.
  void decode(const host_batch& batch, at::Tensor& images);
  // The number of damaged images so far.
  std::uint64_t damaged() const;

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

// Resamples a decoded image (3 x height x width bytes, any device) to the view's output (3 x
// window.height x window.width float32, rounded). Antialiased bilinear, by ATen.
at::Tensor resampled(const at::Tensor& image, const view_of_image& view);

}  // namespace millrace
