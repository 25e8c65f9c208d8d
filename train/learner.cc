#include "train/learner.h"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <filesystem>
#include <optional>

#include "train/device/to_device.h"
#include "train/models/model.h"
#include "train/models/weights.h"

namespace millrace {
namespace {

// Enables bf16 autocast while it lives.
class autocast {
 public:
  explicit autocast(bool on) : on_(on) {
    if (!on_) return;
    at::autocast::set_autocast_enabled(at::kCUDA, true);
    at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~autocast() {
    if (!on_) return;
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCUDA, false);
  }
  autocast(const autocast&) = delete;
  autocast& operator=(const autocast&) = delete;

 private:
  bool on_;
};

std::shared_ptr<model> make_seeded_model(const train_options& o, c10::Device device) {
  torch::manual_seed(o.seed);
  auto made = model_named(o.model, o.own_models).make({o.classes, o.size});
  if (!o.init_weights.empty()) load_weights(*made, load_tensors(o.init_weights), o.init_weights);
  made->to(device);
  for (auto& p : made->parameters()) {
    if (p.dim() != 4) continue;
    // A fresh copy gives 1x1 kernels, which are contiguous in either format, the strides of their
    // gradients: DDP's buckets take strides from the parameters.
    const auto like = p.options().memory_format(at::MemoryFormat::ChannelsLast);
    p.set_data(torch::empty(p.sizes(), like).copy_(p.detach()));
  }
  return made;
}

torch::optim::SGDOptions sgd_options(const optimizer_options& o) {
  return torch::optim::SGDOptions(o.lr)
      .momentum(o.momentum)
      .weight_decay(o.weight_decay)
      .nesterov(o.nesterov);
}

}  // namespace

struct learner::impl {
  impl(const train_options& o, c10::Device d)
      : options(o),
        device(d),
        hand_off(d, o.gpu_decode > 0 ? std::make_unique<gpu_decoder>(d) : nullptr),
        net(make_seeded_model(o, d)),
        optimizer(net->parameters(), sgd_options(o.optimizer)) {}

  bool uses_autocast() const { return device.is_cuda() && options.amp; }

  train_options options;
  c10::Device device;
  to_device hand_off;
  std::shared_ptr<model> net;
  torch::optim::SGD optimizer;
  std::optional<data_parallel> ranks;
};

learner::learner(const train_options& options, c10::Device device)
    : impl_(std::make_unique<impl>(options, device)) {}

learner::~learner() = default;

void learner::join(process_group& group) {
  impl_->ranks.emplace(group, *impl_->net);
}

learner::outcome learner::train(host_batch b, double rate) {
  for (auto& g : impl_->optimizer.param_groups()) {
    static_cast<torch::optim::SGDOptions&>(g.options()).lr(rate);
  }
  const device_batch input = impl_->hand_off(std::move(b));
  impl_->optimizer.zero_grad();
  outcome out;
  out.labels = input.labels;
  {
    const autocast half(impl_->uses_autocast());
    const scored_batch scored =
        impl_->net->loss_of(input.images, {.labels = input.labels,
                                           .other_labels = input.other_labels,
                                           .share = input.share,
                                           .smoothing = impl_->options.label_smoothing});
    out.loss = scored.loss;
    out.scores = scored.scores;
  }
  impl_->ranks->backward(out.loss);
  if (impl_->options.optimizer.clip_norm > 0) {
    torch::nn::utils::clip_grad_norm_(impl_->net->parameters(), impl_->options.optimizer.clip_norm);
  }
  impl_->optimizer.step();
  return out;
}

double learner::outcome::accuracy() const {
  return scores.argmax(1).eq(labels).to(torch::kFloat32).mean().item<double>();
}

void learner::begin_evaluation() {
  impl_->ranks->share_buffers();
  impl_->net->eval();
}

void learner::evaluate(host_batch b, at::Tensor& sums) {
  const torch::NoGradGuard no_grad;
  const device_batch input = impl_->hand_off(std::move(b));
  torch::Tensor scores;
  {
    const autocast half(impl_->uses_autocast());
    scores = impl_->net->forward(input.images).to(torch::kFloat32);
  }
  const std::int64_t best = std::min<std::int64_t>(5, impl_->options.classes);
  const auto hits = std::get<1>(scores.topk(best, 1)).eq(input.labels.unsqueeze(1));
  sums[0] += torch::nn::functional::cross_entropy(
      scores, input.labels,
      torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
  sums[1] += hits.narrow(1, 0, 1).sum();
  sums[2] += hits.sum();
  sums[3] += input.size();
}

void learner::end_evaluation() {
  impl_->net->train();
}

void learner::save(checkpoint& to) const {
  to.model = weights_of(*impl_->net);
  for (const auto& p : impl_->net->named_parameters()) {
    const auto found = impl_->optimizer.state().find(p.value().unsafeGetTensorImpl());
    if (found == impl_->optimizer.state().end()) continue;
    const auto& kept = static_cast<const torch::optim::SGDParamState&>(*found->second);
    if (kept.momentum_buffer().defined()) to.optimizer[p.key()] = kept.momentum_buffer();
  }
}

void learner::restore(const checkpoint& from, const std::string& path) {
  namespace fs = std::filesystem;
  const torch::NoGradGuard no_grad;
  load_weights(*impl_->net, from.model, (fs::path(path) / "model.safetensors").string());
  for (const auto& p : impl_->net->named_parameters()) {
    const auto found = from.optimizer.find(p.key());
    if (found == from.optimizer.end()) continue;
    check_tensor(p.key(), found->second, p.value(),
                 (fs::path(path) / "optimizer.safetensors").string());
    auto kept = std::make_unique<torch::optim::SGDParamState>();
    kept->momentum_buffer(torch::empty_like(p.value()).copy_(found->second));
    impl_->optimizer.state()[p.value().unsafeGetTensorImpl()] = std::move(kept);
  }
}

std::int64_t learner::parameters() const {
  std::int64_t sum = 0;
  for (const auto& p : impl_->net->parameters()) sum += p.numel();
  return sum;
}

c10::Device learner::device() const {
  return impl_->device;
}

std::uint64_t learner::damaged() const {
  return impl_->hand_off.damaged();
}

}  // namespace millrace
