#include "train/job/learner.h"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <filesystem>
#include <optional>

#include "engine/base/error.h"
#include "engine/base/fingerprint.h"
#include "train/device/step_graph.h"
#include "train/device/to_device.h"
#include "train/models/known_models.h"
#include "train/models/weights.h"
#include "train/optim/moving_average.h"
#include "train/optim/optimizer.h"

namespace millrace {
namespace {

// Enables bf16 autocast while it lives.
class autocast {
 public:
  // `keeps`: whether it keeps casts of weights while it lives, as a graph must not.
  explicit autocast(bool on, bool keeps = true) : on_(on) {
    if (!on_) return;
    at::autocast::set_autocast_cache_enabled(keeps);
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

void choose_kernels(const train_options& o) {
  if (o.deterministic) {
    // As PyTorch's notes on reproducibility say; cuBLAS reads the variable when it is first used.
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    at::globalContext().setDeterministicCuDNN(true);
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  at::globalContext().setBenchmarkCuDNN(o.cudnn_benchmark && !o.deterministic);
  at::globalContext().setAllowTF32CuDNN(o.tf32);
  at::globalContext().setAllowTF32CuBLAS(o.tf32);
}

std::shared_ptr<model> make_seeded_model(const train_options& o, c10::Device device) {
  torch::manual_seed(o.seed);
  auto made =
      model_named(o.model, o.own_models)
          .make({.classes = o.classes, .image_size = o.size, .zero_last_norm = o.zero_last_norm});
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

// What a model draws in a step, such as the branches that it leaves out, is the same however often
// the run was resumed.
void seed_step(std::uint64_t seed, int rank, std::int64_t step) {
  torch::manual_seed(fingerprint(fmt::format("{} {} {}", seed, rank, step)));
}

// Parts of nearly equal size, in order.
std::vector<device_batch> parts_of(const device_batch& whole, int count) {
  if (count == 1) return {whole};
  const auto images = whole.images.tensor_split(count);
  const auto labels = whole.labels.tensor_split(count);
  std::vector<at::Tensor> others(images.size());
  if (whole.other_labels.defined()) others = whole.other_labels.tensor_split(count);
  std::vector<device_batch> parts(images.size(), whole);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i].images = images[i];
    parts[i].labels = labels[i];
    parts[i].other_labels = others[i];
  }
  std::erase_if(parts, [](const device_batch& part) { return part.size() == 0; });
  return parts;
}

}  // namespace

struct learner::impl {
  impl(const train_options& o, c10::Device d)
      : options(o),
        device(d),
        hand_off(d, o.gpu_decode > 0 ? std::make_unique<gpu_decoder>(d) : nullptr),
        net(make_seeded_model(o, d)),
        updates(o.optimizer, *net) {
    if (o.ema_decay > 0) average.emplace(*net, o.ema_decay);
    if (o.graph) graph.emplace(d);
  }

  bool uses_autocast() const { return device.is_cuda() && options.amp; }

  // A step, but for what changes from one to the next without the batch.
  outcome step_on(const device_batch& b, std::int64_t of_all_ranks) {
    updates.zero_grad();
    outcome out = gradients_of(b, of_all_ranks);
    updates.step();
    if (average) average->update();
    return out;
  }

  // The same by a graph, which works on one batch's memory.
  outcome replayed(const device_batch& b, std::int64_t of_all_ranks) {
    // A last, smaller batch.
    if (b.size() != options.batch_size) return step_on(b, of_all_ranks);
    if (!recorded.images.defined()) {
      recorded = b;
      recorded.images = b.images.clone();
      recorded.labels = b.labels.clone();
    } else if (recorded.images.sizes() != b.images.sizes()) {
      return step_on(b, of_all_ranks);
    } else {
      recorded.images.copy_(b.images);
      recorded.labels.copy_(b.labels);
    }
    graph->run([&] { of_graph = step_on(recorded, of_all_ranks); });
    return of_graph;
  }

  // Adds the gradients of a batch, in parts, and averages them over the ranks.
  outcome gradients_of(const device_batch& b, std::int64_t of_all_ranks) {
    outcome out;
    if (b.size() == 0) {
      ranks->backward_without_samples();
      return out;
    }
    out.labels = b.labels;
    const double of_rank = ranks->weight(b.size(), of_all_ranks);
    const auto parts = parts_of(b, options.accumulate);
    std::vector<at::Tensor> scores;
    for (const device_batch& part : parts) {
      at::Tensor loss;
      {
        const autocast half(uses_autocast(), !graph);
        scored_batch scored = net->loss_of(part.images, {.labels = part.labels,
                                                         .other_labels = part.other_labels,
                                                         .share = part.share,
                                                         .smoothing = options.label_smoothing});
        loss = std::move(scored.loss);
        scores.push_back(std::move(scored.scores));
      }
      // The mean over the whole batch.
      const double weight = static_cast<double>(part.size()) / static_cast<double>(b.size());
      if (parts.size() > 1) loss = loss * weight;
      ranks->backward(of_rank == 1 ? loss : loss * of_rank, &part == &parts.back());
      out.loss = out.loss.defined() ? out.loss + loss.detach() : loss.detach();
      scores.back() = scores.back().detach();
    }
    out.scores = scores.size() == 1 ? scores.front() : torch::cat(scores);
    return out;
  }

  train_options options;
  c10::Device device;
  to_device hand_off;
  std::shared_ptr<model> net;
  optimizer updates;
  std::optional<moving_average> average;
  std::optional<step_graph> graph;
  device_batch recorded;  // what the graph works on
  outcome of_graph;
  int part = 0;
  std::optional<data_parallel> ranks;
};

learner::learner(const train_options& options, c10::Device device) {
  choose_kernels(options);
  impl_ = std::make_unique<impl>(options, device);
}

learner::~learner() = default;

void learner::join(process_group& group, int part) {
  if (impl_->graph && !group.alone()) {
    throw failure(error(errc::usage, "--graph is for one rank").hint("leave it out"));
  }
  impl_->ranks.emplace(group, *impl_->net, gradients_in::buckets);
  impl_->part = part;
  if (impl_->average) impl_->average->begin();
}

device_batch learner::bring(host_batch b) {
  return b.size() == 0 ? device_batch() : impl_->hand_off(std::move(b));
}

learner::outcome learner::train(const device_batch& b, const step_terms& terms) {
  seed_step(impl_->options.seed, impl_->part, terms.step);
  impl_->updates.set_rate(terms.rate);
  return impl_->graph ? impl_->replayed(b, terms.of_all_ranks)
                      : impl_->step_on(b, terms.of_all_ranks);
}

at::Tensor learner::outcome::accuracy() const {
  return scores.argmax(1).eq(labels).to(torch::kFloat32).mean();
}

void learner::begin_evaluation() {
  impl_->ranks->share_buffers();
  if (impl_->average) {
    impl_->average->lend();
    impl_->ranks->share_buffers();
  }
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
  if (impl_->average) impl_->average->give_back();
  impl_->net->train();
}

void learner::save(checkpoint& to) const {
  to.model = weights_of(*impl_->net);
  to.optimizer = impl_->updates.state();
  if (impl_->average) to.ema = impl_->average->state();
}

void learner::restore(const checkpoint& from, const std::string& path) {
  const auto file = [&](const char* name) { return (std::filesystem::path(path) / name).string(); };
  load_weights(*impl_->net, from.model, file(model_name));
  impl_->updates.load(from.optimizer, file(optimizer_name));
  if (!impl_->average) return;
  if (from.ema.empty()) {
    impl_->average->begin();
  } else {
    impl_->average->load(from.ema, file(ema_name));
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
