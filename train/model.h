#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>

#include "train/safetensors.h"

namespace millrace {

// A network from NCHW float images to class scores.
class model : public torch::nn::Module {
 public:
  // The scores, N x classes, of N x 3 x H x W images as to_device gives them.
  virtual torch::Tensor forward(torch::Tensor images) = 0;
};

// ResNet-18, -34 or -50 with torchvision's architecture (v1.5: the stride is in the 3x3
// convolution), parameter names and initialisation (draws from torch's global generator), or
// "trivial": one linear layer on the pixels. Throws `failure` (usage) for another name.
std::shared_ptr<model> make_model(const std::string& name, int classes, int image_size);

// Parameters and buffers by name: torchvision's state dict.
tensor_dict weights_of(const model& m);
// The reverse. Throws `failure` (bad_state) for a tensor that is missing, has another shape or is
// not finite; `where` names the file in its message.
void load_weights(model& m, const tensor_dict& weights, const std::string& where);
// Throws `failure` (bad_state) if the shapes of a file's tensor and the model's differ, naming
// both, or if the file's is not finite.
void check_tensor(const std::string& name, const at::Tensor& in_file, const at::Tensor& in_model,
                  const std::string& where);
// Throws `failure` (bad_state) if a file's tensor is not finite.
void check_finite(const std::string& name, const at::Tensor& in_file, const std::string& where);
// Whether every number of `t` is finite. The host waits for the device.
bool is_finite(const at::Tensor& t);

}  // namespace millrace
