#include "train/model.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <array>

#include "engine/error.h"

namespace millrace {
namespace {

namespace nn = torch::nn;

nn::Conv2d convolution(int in, int out, int kernel, int stride) {
  return nn::Conv2d(
      nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

// ReLU in place.
torch::Tensor activated(torch::Tensor x) {
  return x.relu_();
}

// The shortcut of a block whose output has another shape than its input.
nn::Sequential projection(int in, int out, int stride) {
  return nn::Sequential(convolution(in, out, 1, stride), nn::BatchNorm2d(out));
}

struct basic_block : nn::Module {
  static constexpr int expansion = 1;

  basic_block(int in, int width, int stride)
      : conv1(register_module("conv1", convolution(in, width, 3, stride))),
        bn1(register_module("bn1", nn::BatchNorm2d(width))),
        conv2(register_module("conv2", convolution(width, width, 3, 1))),
        bn2(register_module("bn2", nn::BatchNorm2d(width))) {
    if (stride != 1 || in != width) {
      downsample = register_module("downsample", projection(in, width, stride));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = activated(bn1(conv1(x)));
    y = bn2(conv2(y));
    y += downsample ? downsample->forward(x) : x;
    return activated(y);
  }

  nn::Conv2d conv1;
  nn::BatchNorm2d bn1;
  nn::Conv2d conv2;
  nn::BatchNorm2d bn2;
  nn::Sequential downsample{nullptr};
};

struct bottleneck : nn::Module {
  static constexpr int expansion = 4;

  bottleneck(int in, int width, int stride)
      : conv1(register_module("conv1", convolution(in, width, 1, 1))),
        bn1(register_module("bn1", nn::BatchNorm2d(width))),
        conv2(register_module("conv2", convolution(width, width, 3, stride))),
        bn2(register_module("bn2", nn::BatchNorm2d(width))),
        conv3(register_module("conv3", convolution(width, width * expansion, 1, 1))),
        bn3(register_module("bn3", nn::BatchNorm2d(width * expansion))) {
    if (stride != 1 || in != width * expansion) {
      downsample = register_module("downsample", projection(in, width * expansion, stride));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = activated(bn1(conv1(x)));
    y = activated(bn2(conv2(y)));
    y = bn3(conv3(y));
    y += downsample ? downsample->forward(x) : x;
    return activated(y);
  }

  nn::Conv2d conv1;
  nn::BatchNorm2d bn1;
  nn::Conv2d conv2;
  nn::BatchNorm2d bn2;
  nn::Conv2d conv3;
  nn::BatchNorm2d bn3;
  nn::Sequential downsample{nullptr};
};

template <class Block>
struct resnet final : model {
  resnet(std::array<int, 4> depths, int classes)
      : conv1(register_module(
            "conv1", nn::Conv2d(nn::Conv2dOptions(3, 64, 7).stride(2).padding(3).bias(false)))),
        bn1(register_module("bn1", nn::BatchNorm2d(64))) {
    int in = 64;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const int width = 64 << i;
      nn::Sequential layer;
      for (int block = 0; block < depths[i]; ++block) {
        layer->push_back(Block(in, width, block == 0 && i > 0 ? 2 : 1));
        in = width * Block::expansion;
      }
      layers[i] = register_module("layer" + std::to_string(i + 1), layer);
    }
    fc = register_module("fc", nn::Linear(in, classes));
    initialize();
  }

  torch::Tensor forward(torch::Tensor x) override {
    x = activated(bn1(conv1(x)));
    x = torch::max_pool2d(x, 3, 2, 1);
    for (auto& layer : layers) x = layer->forward(x);
    x = torch::flatten(torch::adaptive_avg_pool2d(x, {1, 1}), 1);
    return fc(x);
  }

  // He et al., fan-out, for convolutions; BatchNorm and Linear keep torch's own defaults.
  void initialize() {
    for (auto& module : modules(/*include_self=*/false)) {
      if (auto* c = module->template as<nn::Conv2d>()) {
        nn::init::kaiming_normal_(c->weight, 0, torch::kFanOut, torch::kReLU);
      }
    }
  }

  nn::Conv2d conv1;
  nn::BatchNorm2d bn1;
  std::array<nn::Sequential, 4> layers{nullptr, nullptr, nullptr, nullptr};
  nn::Linear fc{nullptr};
};

struct trivial final : model {
  trivial(int classes, int image_size)
      : fc(register_module("fc", nn::Linear(3 * image_size * image_size, classes))) {}
  torch::Tensor forward(torch::Tensor x) override { return fc(torch::flatten(x.contiguous(), 1)); }
  nn::Linear fc;
};

std::string shape_of(const at::Tensor& t) {
  std::string out;
  for (const std::int64_t side : t.sizes()) {
    out += out.empty() ? std::to_string(side) : fmt::format(" x {}", side);
  }
  return out.empty() ? "a scalar" : out;
}

}  // namespace

std::shared_ptr<model> make_model(const std::string& name, int classes, int image_size) {
  if (name == "resnet18") {
    return std::make_shared<resnet<basic_block>>(std::array{2, 2, 2, 2}, classes);
  }
  if (name == "resnet34") {
    return std::make_shared<resnet<basic_block>>(std::array{3, 4, 6, 3}, classes);
  }
  if (name == "resnet50") {
    return std::make_shared<resnet<bottleneck>>(std::array{3, 4, 6, 3}, classes);
  }
  if (name == "trivial") return std::make_shared<trivial>(classes, image_size);
  throw failure(error(errc::usage, "there is no model named " + name)
                    .hint("resnet18, resnet34, resnet50 or trivial"));
}

tensor_dict weights_of(const model& m) {
  tensor_dict out;
  for (const auto& p : m.named_parameters()) out[p.key()] = p.value().detach();
  for (const auto& b : m.named_buffers()) out[b.key()] = b.value();
  return out;
}

bool is_finite(const at::Tensor& t) {
  return !t.is_floating_point() || torch::isfinite(t).all().item<bool>();
}

void check_tensor(const std::string& name, const at::Tensor& in_file, const at::Tensor& in_model,
                  const std::string& where) {
  if (in_file.sizes() != in_model.sizes()) {
    throw failure(error(errc::bad_state, fmt::format("'{}' is {} in the file, and {} in the model",
                                                     name, shape_of(in_file), shape_of(in_model)))
                      .at(where)
                      .hint("check --model, --classes and --size"));
  }
  check_finite(name, in_file, where);
}

void check_finite(const std::string& name, const at::Tensor& in_file, const std::string& where) {
  if (is_finite(in_file)) return;
  throw failure(
      error(errc::bad_state,
            fmt::format("'{}' is not finite: the training that saved it had diverged", name))
          .at(where)
          .hint("give an older checkpoint (--resume PATH --overwrite), or start again with a lower "
                "--lr"));
}

void load_weights(model& m, const tensor_dict& weights, const std::string& where) {
  const torch::NoGradGuard no_grad;
  const auto load = [&](const auto& named) {
    for (const auto& entry : named) {
      const auto found = weights.find(entry.key());
      if (found == weights.end()) {
        throw failure(
            error(errc::bad_state, fmt::format("the file lacks '{}', which is {} in the model",
                                               entry.key(), shape_of(entry.value())))
                .at(where)
                .hint("check --model"));
      }
      check_tensor(entry.key(), found->second, entry.value(), where);
      entry.value().copy_(found->second);
    }
  };
  load(m.named_parameters());
  load(m.named_buffers());
}

}  // namespace millrace
