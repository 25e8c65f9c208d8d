#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>

#include <memory>
#include <string>

namespace millrace {

// A network from NCHW float images to class scores.
class model : public torch::nn::Module {
 public:
  virtual torch::Tensor forward(torch::Tensor images) = 0;
};

// ResNet-18, -34 or -50 with torchvision's architecture (v1.5: the stride is in the 3x3
// convolution), parameter names and initialisation (draws from torch's global generator), or
// "trivial": one linear layer on the pixels. Throws `failure` (usage) for another name.
std::shared_ptr<model> make_model(const std::string& name, int classes, int image_size);

}  // namespace millrace
