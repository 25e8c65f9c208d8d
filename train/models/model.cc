#include "train/models/model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <type_traits>

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

}  // namespace

// For mixed images, the losses of both labels, weighted by their shares.
scored_batch model::loss_of(torch::Tensor images, const loss_terms& terms) {
  const auto scores = forward(std::move(images));
  const auto of = [&](const torch::Tensor& labels) {
    return nn::functional::cross_entropy(
        scores, labels, nn::functional::CrossEntropyFuncOptions().label_smoothing(terms.smoothing));
  };
  if (!terms.other_labels.defined()) return {of(terms.labels), scores};
  return {terms.share * of(terms.labels) + (1 - terms.share) * of(terms.other_labels), scores};
}

const std::vector<known_model>& known_models() {
  // The last layers of a resnet see a thirty-second of the image's side.
  constexpr int side = 32;
  const auto resnet_of = [](auto block, std::array<int, 4> depths) {
    return [depths](const model_terms& terms) -> std::shared_ptr<model> {
      return std::make_shared<resnet<typename decltype(block)::type>>(depths, terms.classes);
    };
  };
  constexpr std::type_identity<basic_block> basic;
  constexpr std::type_identity<bottleneck> deep;
  static const auto& all = *new std::vector<known_model>{
      {"resnet18", resnet_of(basic, {2, 2, 2, 2}), true, side},
      {"resnet34", resnet_of(basic, {3, 4, 6, 3}), true, side},
      {"resnet50", resnet_of(deep, {3, 4, 6, 3}), true, side},
      {"trivial",
       [](const model_terms& terms) {
         return std::make_shared<trivial>(terms.classes, terms.image_size);
       },
       false}};
  return all;
}

std::vector<std::string> model_names(const std::vector<known_model>& own) {
  std::vector<std::string> names;
  for (const known_model& one : own) names.push_back(one.name);
  for (const known_model& one : known_models()) names.push_back(one.name);
  return names;
}

const known_model& model_named(const std::string& name, const std::vector<known_model>& own) {
  for (const known_model& one : own) {
    if (one.name == name) return one;
  }
  const auto found = std::ranges::find(known_models(), name, &known_model::name);
  if (found != known_models().end()) return *found;
  throw failure(error(errc::usage, "there is no model named " + name)
                    .hint(fmt::format("give one of {}", fmt::join(model_names(own), ", "))));
}

}  // namespace millrace
