#include "train/optim/moving_average.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <vector>

#include "engine/base/error.h"
#include "train/models/weights.h"

namespace millrace {

struct moving_average::impl {
  double decay = 0;
  tensor_dict all;                  // the model's
  std::vector<std::string> names;   // of those that are averaged
  std::vector<at::Tensor> own;      // the model's, by these names
  std::vector<at::Tensor> average;  // by these names
  std::vector<at::Tensor> held;     // the model's values while the average is lent
};

moving_average::moving_average(const torch::nn::Module& net, double decay)
    : impl_(new impl{.decay = decay, .all = weights_of(net)}) {
  for (const auto& [name, tensor] : impl_->all) {
    if (!tensor.is_floating_point()) continue;
    impl_->names.push_back(name);
    impl_->own.push_back(tensor);
    impl_->average.push_back(tensor.clone());
  }
}

moving_average::~moving_average() = default;

void moving_average::begin() {
  const torch::NoGradGuard no_grad;
  at::_foreach_copy_(impl_->average, impl_->own);
}

void moving_average::update() {
  const torch::NoGradGuard no_grad;
  at::_foreach_lerp_(impl_->average, impl_->own, 1 - impl_->decay);
}

void moving_average::lend() {
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& t : impl_->own) impl_->held.push_back(t.clone());
  at::_foreach_copy_(impl_->own, impl_->average);
}

void moving_average::give_back() {
  const torch::NoGradGuard no_grad;
  at::_foreach_copy_(impl_->own, impl_->held);
  impl_->held.clear();
}

tensor_dict moving_average::state() const {
  tensor_dict out = impl_->all;
  for (std::size_t i = 0; i < impl_->names.size(); ++i) out[impl_->names[i]] = impl_->average[i];
  return out;
}

void moving_average::load(const tensor_dict& state, const std::string& where) {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < impl_->names.size(); ++i) {
    const auto found = state.find(impl_->names[i]);
    if (found == state.end()) {
      throw failure(error(errc::bad_state, fmt::format("the file lacks '{}'", impl_->names[i]))
                        .at(where)
                        .hint("check --model, or resume without --ema-decay"));
    }
    check_tensor(impl_->names[i], found->second, impl_->average[i], where);
    impl_->average[i].copy_(found->second);
  }
}

}  // namespace millrace
