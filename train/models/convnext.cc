#include "train/models/convnext.h"

#include <torch/torch.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

namespace millrace {
namespace {

namespace nn = torch::nn;

nn::LayerNorm pixel_norm(int width) {
  return nn::LayerNorm(nn::LayerNormOptions({width}).eps(1e-6));
}

// LayerNorm over the channels of N x C x H x W.
struct channel_norm final : nn::LayerNormImpl {
  explicit channel_norm(int width) : LayerNormImpl(nn::LayerNormOptions({width}).eps(1e-6)) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return LayerNormImpl::forward(x.permute({0, 2, 3, 1})).permute({0, 3, 1, 2});
  }
};

// A new order of the dimensions.
struct reordered final : nn::Module {
  explicit reordered(std::vector<std::int64_t> order) : dimensions(std::move(order)) {}
  torch::Tensor forward(const torch::Tensor& x) { return x.permute(dimensions); }
  std::vector<std::int64_t> dimensions;
};

nn::Conv2d biased_convolution(int in, int out, int kernel, int stride, int padding, int groups) {
  return nn::Conv2d(
      nn::Conv2dOptions(in, out, kernel).stride(stride).padding(padding).groups(groups));
}

// A Sequential that another one may hold.
struct chain final : nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  torch::Tensor forward(torch::Tensor x) { return SequentialImpl::forward(std::move(x)); }
};

struct convnext_block final : nn::Module {
  // `left_out`: the probability with which the branch of an image is left out in training.
  convnext_block(int width, double left_out)
      : block(register_module(
            "block",
            nn::Sequential(biased_convolution(width, width, 7, 1, 3, width),
                           reordered({0, 2, 3, 1}), pixel_norm(width), nn::Linear(width, 4 * width),
                           nn::GELU(), nn::Linear(4 * width, width), reordered({0, 3, 1, 2})))),
        layer_scale(register_parameter("layer_scale", torch::full({width, 1, 1}, 1e-6))),
        kept(1 - left_out) {}

  torch::Tensor forward(const torch::Tensor& x) {
    auto y = layer_scale * block->forward(x);
    if (is_training() && kept < 1) {
      y = y * torch::empty({x.size(0), 1, 1, 1}, y.options()).bernoulli_(kept).div_(kept);
    }
    return y + x;
  }

  nn::Sequential block;
  torch::Tensor layer_scale;
  double kept;
};

struct convnext final : model {
  convnext(std::array<int, 4> widths, std::array<int, 4> depths, double left_out, int classes) {
    int blocks = 0;
    for (const int depth : depths) blocks += depth;
    features->push_back(std::make_shared<chain>(biased_convolution(3, widths[0], 4, 4, 0, 1),
                                                channel_norm(widths[0])));
    int number = 0;
    for (std::size_t stage = 0; stage < widths.size(); ++stage) {
      if (stage > 0) {
        features->push_back(std::make_shared<chain>(
            channel_norm(widths[stage - 1]),
            biased_convolution(widths[stage - 1], widths[stage], 2, 2, 0, 1)));
      }
      const auto layers = std::make_shared<chain>();
      for (int i = 0; i < depths[stage]; ++i, ++number) {
        layers->push_back(convnext_block(widths[stage], left_out * number / (blocks - 1)));
      }
      features->push_back(layers);
    }
    register_module("features", features);
    classifier =
        register_module("classifier", nn::Sequential(channel_norm(widths.back()), nn::Flatten(),
                                                     nn::Linear(widths.back(), classes)));
    initialize();
  }

  torch::Tensor forward(torch::Tensor x) override {
    return classifier->forward(torch::adaptive_avg_pool2d(features->forward(x), {1, 1}));
  }

  void initialize() {
    // torchvision cuts the distribution at 2, which no value of this deviation reaches. (Its own
    // method makes about one weight in 2^24 a 2 by rounding; this one does not.)
    const auto set = [](const auto& layer) {
      nn::init::normal_(layer->weight, 0, 0.02);
      nn::init::zeros_(layer->bias);
    };
    for (auto& module : modules(/*include_self=*/false)) {
      if (auto* c = module->as<nn::Conv2d>()) set(c);
      if (auto* l = module->as<nn::Linear>()) set(l);
    }
  }

  nn::Sequential features;
  nn::Sequential classifier{nullptr};
};

}  // namespace

std::vector<known_model> convnexts() {
  return {{.name = "convnext_tiny",
           .make =
               [](const model_terms& terms) {
                 return std::make_shared<convnext>(std::array{96, 192, 384, 768},
                                                   std::array{3, 3, 9, 3}, 0.1, terms.classes);
               },
           // Its stem and its three reductions divide the side of an image by 32.
           .smallest_size = 32}};
}

}  // namespace millrace
