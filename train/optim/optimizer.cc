#include "train/optim/optimizer.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <vector>

#include "engine/base/error.h"
#include "train/models/weights.h"

namespace millrace {
namespace {

using tensor_list = std::vector<at::Tensor>;

// The tensors that a kind keeps for each parameter, by the ends of their names.
std::vector<std::string> kept_by(const optimizer_options& o) {
  switch (o.kind) {
    case optimizer_kind::sgd:
      return o.momentum > 0 ? std::vector<std::string>{""} : std::vector<std::string>{};
    case optimizer_kind::adamw:
      return {".exp_avg", ".exp_avg_sq"};
    case optimizer_kind::lars:
      return {".momentum"};
  }
  return {};
}

// Parameters that decay alike.
struct parameter_group {
  double decay = 0;
  std::vector<std::string> names;
  tensor_list weights;
  std::vector<tensor_list> kept;  // as kept_by(), each as many as the weights; empty until needed
};

// Those parameters of a group that have a gradient, in step with each other.
struct group_work {
  double decay = 0;
  tensor_list weights;
  tensor_list gradients;
  std::vector<tensor_list> kept;
};

// The fused kernels want a gradient of the same strides as the weights. Those that autograd makes
// may differ along sides of length 1.
at::Tensor aligned(const at::Tensor& gradient, const at::Tensor& weights) {
  if (gradient.strides() == weights.strides()) return gradient;
  return torch::empty_like(weights).copy_(gradient);
}

}  // namespace

struct optimizer::impl {
  impl(const optimizer_options& o, const torch::nn::Module& net) : options(o), kinds(kept_by(o)) {
    groups.resize(2);
    groups[0].decay = o.weight_decay;
    for (const auto& p : net.named_parameters()) {
      if (!p.value().requires_grad()) continue;
      const bool decays = o.decays == decayed::all || p.value().dim() > 1;
      parameter_group& its = groups[decays ? 0 : 1];
      its.names.push_back(p.key());
      its.weights.push_back(p.value());
    }
    const auto device = net.parameters().empty() ? at::kCPU : net.parameters().front().device();
    const auto real = at::TensorOptions().device(device).dtype(torch::kFloat32);
    // The kernels of a GPU read a float there; those of the CPU compute in double.
    rate = torch::zeros({}, device.is_cuda() ? real : real.dtype(torch::kFloat64));
    steps = torch::zeros({}, real);
  }

  void begin() {
    for (parameter_group& g : groups) {
      if (!g.kept.empty()) continue;
      for (std::size_t i = 0; i < kinds.size(); ++i) {
        tensor_list& of_kind = g.kept.emplace_back();
        for (const at::Tensor& w : g.weights) of_kind.push_back(torch::zeros_like(w));
      }
    }
  }

  std::vector<group_work> gathered() const {
    std::vector<group_work> all;
    for (const parameter_group& g : groups) {
      group_work w{.decay = g.decay, .kept = std::vector<tensor_list>(kinds.size())};
      for (std::size_t i = 0; i < g.weights.size(); ++i) {
        const at::Tensor& gradient = g.weights[i].grad();
        if (!gradient.defined()) continue;
        w.weights.push_back(g.weights[i]);
        w.gradients.push_back(aligned(gradient, g.weights[i]));
        for (std::size_t k = 0; k < kinds.size(); ++k) w.kept[k].push_back(g.kept[k][i]);
      }
      if (!w.weights.empty()) all.push_back(std::move(w));
    }
    return all;
  }

  // As torch.nn.utils.clip_grad_norm_, without reading the norm.
  void clip(std::vector<group_work>& all) const {
    tensor_list norms;
    for (group_work& w : all) {
      for (at::Tensor& norm : at::_foreach_norm(w.gradients)) norms.push_back(std::move(norm));
    }
    if (norms.empty()) return;
    const auto norm = torch::stack(norms).norm();
    const auto factor = (options.clip_norm / (norm + 1e-6)).clamp_max(1);
    for (group_work& w : all) at::_foreach_mul_(w.gradients, factor);
  }

  void sgd(group_work& w) const {
    at::_fused_sgd_(w.weights, w.gradients, w.kept.empty() ? tensor_list() : w.kept[0], w.decay,
                    options.momentum, rate, /*dampening=*/0, options.nesterov, /*maximize=*/false,
                    /*is_first_step=*/false);
  }

  void adamw(group_work& w) const {
    // All parameters have taken the same number of steps: the kernel only reads it.
    const tensor_list taken(w.weights.size(), steps);
    at::_fused_adamw_(w.weights, w.gradients, w.kept[0], w.kept[1], /*max_exp_avg_sqs=*/{}, taken,
                      rate, options.beta1, options.beta2, w.decay, options.eps, /*amsgrad=*/false,
                      /*maximize=*/false);
  }

  void lars(group_work& w) const {
    tensor_list by = w.gradients;
    if (w.decay != 0) {  // else the tensors, such as norms and biases, are not scaled
      const auto of_weights = torch::stack(at::_foreach_norm(w.weights));
      const auto of_gradients = torch::stack(at::_foreach_norm(w.gradients));
      const auto ratio =
          options.trust * of_weights / (of_gradients + w.decay * of_weights + options.eps);
      const auto scale = torch::where((of_weights > 0).logical_and(of_gradients > 0), ratio,
                                      torch::ones_like(ratio));
      by = at::_foreach_add(w.gradients, w.weights, w.decay);
      at::_foreach_mul_(by, scale.unbind());
    }
    at::_foreach_mul_(w.kept[0], options.momentum);
    at::_foreach_add_(w.kept[0], by);
    if (options.nesterov) {
      by = at::_foreach_add(by, w.kept[0], options.momentum);
    } else {
      by = w.kept[0];
    }
    at::_foreach_sub_(w.weights, at::_foreach_mul(by, rate));
  }

  optimizer_options options;
  std::vector<std::string> kinds;       // kept_by()
  std::vector<parameter_group> groups;  // what decays, and what does not
  at::Tensor rate;                      // on the device
  at::Tensor steps;                     // taken by AdamW, on the device
};

optimizer::optimizer(const optimizer_options& options, const torch::nn::Module& net)
    : impl_(std::make_unique<impl>(options, net)) {}

optimizer::~optimizer() = default;

void optimizer::zero_grad() {
  for (parameter_group& g : impl_->groups) {
    for (at::Tensor& w : g.weights) w.mutable_grad().reset();
  }
}

void optimizer::set_rate(double rate) {
  const torch::NoGradGuard no_grad;
  impl_->rate.fill_(rate);
}

void optimizer::step() {
  const torch::NoGradGuard no_grad;
  impl_->begin();
  auto all = impl_->gathered();
  if (impl_->options.clip_norm > 0) impl_->clip(all);
  if (impl_->options.kind == optimizer_kind::adamw) impl_->steps += 1;
  for (group_work& w : all) {
    switch (impl_->options.kind) {
      case optimizer_kind::sgd:
        impl_->sgd(w);
        break;
      case optimizer_kind::adamw:
        impl_->adamw(w);
        break;
      case optimizer_kind::lars:
        impl_->lars(w);
        break;
    }
  }
}

tensor_dict optimizer::state() const {
  tensor_dict out;
  for (const parameter_group& g : impl_->groups) {
    for (std::size_t k = 0; k < g.kept.size(); ++k) {
      for (std::size_t i = 0; i < g.names.size(); ++i) {
        out[g.names[i] + impl_->kinds[k]] = g.kept[k][i];
      }
    }
  }
  if (impl_->options.kind == optimizer_kind::adamw && !out.empty()) {
    out["step"] = impl_->steps.to(torch::kInt64);
  }
  return out;
}

void optimizer::load(const tensor_dict& state, const std::string& where) {
  const torch::NoGradGuard no_grad;
  if (impl_->kinds.empty()) return;
  const bool may_lack = impl_->options.kind == optimizer_kind::sgd;
  const auto found = [&](const std::string& name) {
    const auto at = state.find(name);
    if (at == state.end() && !may_lack) {
      throw failure(error(errc::bad_state, fmt::format("the file lacks '{}'", name))
                        .at(where)
                        .hint("resume with the --optimizer and --model of the run that saved it"));
    }
    return at;
  };
  impl_->begin();
  for (parameter_group& g : impl_->groups) {
    for (std::size_t k = 0; k < g.kept.size(); ++k) {
      for (std::size_t i = 0; i < g.names.size(); ++i) {
        const std::string name = g.names[i] + impl_->kinds[k];
        const auto at = found(name);
        if (at == state.end()) continue;
        check_tensor(name, at->second, g.weights[i], where);
        g.kept[k][i].copy_(at->second);
      }
    }
  }
  if (impl_->options.kind != optimizer_kind::adamw) return;
  const at::Tensor& step = found("step")->second;
  check_tensor("step", step, impl_->steps, where);
  impl_->steps.copy_(step);
}

}  // namespace millrace
