#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>

#include "pipeline/images/image.h"
#include "pipeline/images/options.h"

namespace millrace {

// Decodes, on a GPU by nvJPEG, the images of a batch that the pool left encoded, straight into the
// batch on the device. nvJPEG's pixels are not libjpeg-turbo's (another inverse transform): outputs
// are near, not exact. One thread.
class gpu_decoder {
 public:
  // Throws `failure` (unsupported) where this build has no nvJPEG, where its library is not there,
  // and for devices that are not GPUs.
  explicit gpu_decoder(c10::Device device);
  ~gpu_decoder();
  gpu_decoder(const gpu_decoder&) = delete;
  gpu_decoder& operator=(const gpu_decoder&) = delete;

  // `images`: N x 3 x H x W float32 on the device, values 0 to 255; those that `batch.encoded`
  // names are written. What nvJPEG refuses is decoded by the CPU; damage that it finds there is
  // filled, counted and told of once.
  void decode(const host_batch& batch, at::Tensor& images);
  std::uint64_t damaged() const;

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

// A decoded image, 3 x height x width bytes on any device, as the view's output: 3 x window.height
// x window.width float32, rounded. Antialiased bilinear, by ATen.
at::Tensor resampled(const at::Tensor& image, const view_of_image& view);

}  // namespace millrace
