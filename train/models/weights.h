#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <string>

#include "train/models/safetensors.h"

namespace millrace {

// Parameters and buffers by name, as in PyTorch's state dict. Shares the tensors.
tensor_dict weights_of(const torch::nn::Module& m);
// The reverse. Throws `failure` (bad_state) for a tensor that is missing, has another shape, is of
// whole numbers where the model's is not (or the reverse) or is not finite, and for one that the
// model lacks; `where` names the file in its message. Numbers of other precisions are converted.
void load_weights(torch::nn::Module& m, const tensor_dict& weights, const std::string& where);
// Throws `failure` (bad_state) if the shapes of a file's tensor and the model's differ, naming
// both, or if the file's is not finite.
void check_tensor(const std::string& name, const at::Tensor& in_file, const at::Tensor& in_model,
                  const std::string& where);
// Throws `failure` (bad_state) if a file's tensor is not finite.
void check_finite(const std::string& name, const at::Tensor& in_file, const std::string& where);
// Whether every number of `t` is finite. The host waits for the device.
bool is_finite(const at::Tensor& t);

// The state of any of torch's optimizers, such as momentum, in torch's own format as one tensor of
// bytes.
tensor_dict state_of(const torch::optim::Optimizer& optimizer);
// The reverse, for an optimizer of the same kind and the same parameters. Throws `failure`
// (bad_state); `where` names the file in its message.
void load_state(torch::optim::Optimizer& optimizer, const tensor_dict& state,
                const std::string& where);

}  // namespace millrace
