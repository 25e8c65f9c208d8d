#include "train/models/resnet.h"

#include <torch/torch.h>

#include <array>
#include <memory>
#include <string>

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
  nn::BatchNorm2d& last_norm() { return bn2; }

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
  nn::BatchNorm2d& last_norm() { return bn3; }

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
  resnet(std::array<int, 4> depths, const model_terms& terms)
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
    fc = register_module("fc", nn::Linear(in, terms.classes));
    initialize(terms.zero_last_norm);
  }

  torch::Tensor forward(torch::Tensor x) override {
    x = activated(bn1(conv1(x)));
    x = torch::max_pool2d(x, 3, 2, 1);
    for (auto& layer : layers) x = layer->forward(x);
    x = torch::flatten(torch::adaptive_avg_pool2d(x, {1, 1}), 1);
    return fc(x);
  }

  // He et al., fan-out, for convolutions; BatchNorm and Linear keep torch's own defaults.
  void initialize(bool zero_last_norm) {
    for (auto& module : modules(/*include_self=*/false)) {
      if (auto* c = module->template as<nn::Conv2d>()) {
        nn::init::kaiming_normal_(c->weight, 0, torch::kFanOut, torch::kReLU);
      }
      auto* block = module->template as<Block>();
      if (zero_last_norm && block != nullptr) nn::init::zeros_(block->last_norm()->weight);
    }
  }

  nn::Conv2d conv1;
  nn::BatchNorm2d bn1;
  std::array<nn::Sequential, 4> layers{nullptr, nullptr, nullptr, nullptr};
  nn::Linear fc{nullptr};
};

template <class Block>
known_model resnet_of(const char* name, std::array<int, 4> depths) {
  return {.name = name,
          .make = [depths](const model_terms& terms) -> std::shared_ptr<model> {
            return std::make_shared<resnet<Block>>(depths, terms);
          },
          // The last layers see a thirty-second of the image's side.
          .side_of_one_value = 32,
          .has_last_norm = true};
}

}  // namespace

std::vector<known_model> resnets() {
  return {resnet_of<basic_block>("resnet18", {2, 2, 2, 2}),
          resnet_of<basic_block>("resnet34", {3, 4, 6, 3}),
          resnet_of<bottleneck>("resnet50", {3, 4, 6, 3}),
          resnet_of<bottleneck>("resnet101", {3, 4, 23, 3})};
}

}  // namespace millrace
