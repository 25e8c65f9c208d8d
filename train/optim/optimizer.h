#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>

#include "train/models/safetensors.h"

namespace millrace {

// How weights follow from gradients: SGD and AdamW as torch.optim has them, and LARS (You et al.
// 2017) as timm has it: SGD whose gradients are scaled, for each tensor, by the ratio of the norms
// of weights and gradient.
enum class optimizer_kind { sgd, adamw, lars };

// Which parameters decay: all, or those of two dimensions or more. Norms and biases have one.
enum class decayed { all, without_norms };

// The settings of an optimizer.
struct optimizer_options {
  optimizer_kind kind = optimizer_kind::sgd;  // whose step it takes
  double momentum = 0.9;                      // of SGD and LARS, 0 to 1
  bool nesterov = false;                      // of SGD and LARS; needs a momentum above 0
  double beta1 = 0.9;                         // of AdamW, for the mean of the gradient, 0 to 1
  double beta2 = 0.999;                       // of AdamW, for the mean of its square, 0 to 1
  double eps = 1e-8;                          // of AdamW and LARS, added to divisors; 0 or more
  double trust = 0.001;                       // of LARS, factor of the ratio of norms; 0 or more
  double weight_decay = 1e-4;                 // 0 or more; AdamW's is decoupled, times the rate
  decayed decays = decayed::all;              // what the weight decay is of
  double clip_norm = 0;  // largest norm of the gradient, over all parameters; 0: not clipped
};

// Changes the parameters of a model by their gradients. Its kernels take whole lists of tensors
// (at::_fused_sgd_ and others), and nothing makes the host wait for the device. One thread; shares
// the tensors of the parameters, which must stay those of the model.
class optimizer {
 public:
  // `net` is on its device.
  optimizer(const optimizer_options& options, const torch::nn::Module& net);
  ~optimizer();
  optimizer(const optimizer&) = delete;
  optimizer& operator=(const optimizer&) = delete;

  // Removes all gradients.
  void zero_grad();
  // The learning rate of the next steps.
  void set_rate(double rate);
  // One step. A parameter without a gradient keeps its value. Clips the gradients, in place.
  void step();

  // The state that a run is resumed from, by the names of the parameters: NAME has the momentum of
  // SGD, NAME.momentum that of LARS, NAME.exp_avg and NAME.exp_avg_sq the means of AdamW, and
  // `step` its number of steps. Empty before the first step, and for SGD without momentum. Shares
  // the tensors.
  tensor_dict state() const;
  // The reverse. Throws `failure` (bad_state) for a tensor that has another shape or is not finite,
  // and for AdamW and LARS if one is missing; SGD begins with no momentum where the file has none.
  // `where` names the file in messages.
  void load(const tensor_dict& state, const std::string& where);

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace millrace
