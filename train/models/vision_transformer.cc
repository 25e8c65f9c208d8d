#include "train/models/vision_transformer.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <cmath>
#include <memory>
#include <vector>

#include "engine/base/error.h"

namespace millrace {
namespace {

namespace nn = torch::nn;

struct transformer_size {
  int patch;   // side in pixels
  int width;   // of a token
  int layers;  // of the encoder
  int heads;   // of each attention
  int hidden;  // width within a block's mlp
};

nn::LayerNorm token_norm(int width) {
  return nn::LayerNorm(nn::LayerNormOptions({width}).eps(1e-6));
}

// Torch's MultiheadAttention without masks and weights: names, shapes and initial values are its.
struct attention final : nn::Module {
  attention(int width, int head_count)
      : heads(head_count),
        in_proj_weight(register_parameter("in_proj_weight", torch::empty({3 * width, width}))),
        in_proj_bias(register_parameter("in_proj_bias", torch::zeros({3 * width}))),
        out_proj(register_module("out_proj", nn::Linear(width, width))) {
    nn::init::xavier_uniform_(in_proj_weight);
    nn::init::zeros_(out_proj->bias);
  }

  // N x tokens x width, in and out.
  torch::Tensor forward(const torch::Tensor& x) {
    const std::int64_t n = x.size(0);
    const std::int64_t tokens = x.size(1);
    const std::int64_t width = x.size(2);
    const auto all = torch::linear(x, in_proj_weight, in_proj_bias)
                         .view({n, tokens, 3, heads, width / heads})
                         .permute({2, 0, 3, 1, 4});
    const auto mixed = at::scaled_dot_product_attention(all[0], all[1], all[2]);
    return out_proj(mixed.transpose(1, 2).reshape({n, tokens, width}));
  }

  std::int64_t heads;
  torch::Tensor in_proj_weight;
  torch::Tensor in_proj_bias;
  nn::Linear out_proj;
};

struct encoder_block final : nn::Module {
  explicit encoder_block(const transformer_size& size)
      : ln_1(register_module("ln_1", token_norm(size.width))),
        self_attention(
            register_module("self_attention", std::make_shared<attention>(size.width, size.heads))),
        ln_2(register_module("ln_2", token_norm(size.width))) {
    const nn::Linear in(size.width, size.hidden);
    const nn::Linear out(size.hidden, size.width);
    for (const nn::Linear& each : {in, out}) {
      nn::init::xavier_uniform_(each->weight);
      nn::init::normal_(each->bias, 0, 1e-6);
    }
    // The dropout, here none, is there for the names: the second layer is mlp.3.
    mlp = register_module("mlp", nn::Sequential(in, nn::GELU(), nn::Dropout(0), out));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = x + self_attention->forward(ln_1(x));
    return y + mlp->forward(ln_2(y));
  }

  nn::LayerNorm ln_1;
  std::shared_ptr<attention> self_attention;
  nn::LayerNorm ln_2;
  nn::Sequential mlp{nullptr};
};

struct encoder final : nn::Module {
  encoder(const transformer_size& size, std::int64_t tokens)
      : pos_embedding(register_parameter("pos_embedding",
                                         torch::empty({1, tokens, size.width}).normal_(0, 0.02))) {
    for (int i = 0; i < size.layers; ++i) {
      layers->push_back(fmt::format("encoder_layer_{}", i), std::make_shared<encoder_block>(size));
    }
    register_module("layers", layers);
    ln = register_module("ln", token_norm(size.width));
  }

  torch::Tensor forward(const torch::Tensor& x) { return ln(layers->forward(x + pos_embedding)); }

  torch::Tensor pos_embedding;
  nn::Sequential layers;
  nn::LayerNorm ln{nullptr};
};

std::int64_t tokens_of(const transformer_size& size, int image_size) {
  if (image_size < size.patch || image_size % size.patch != 0) {
    throw failure(error(errc::usage, fmt::format("images of {} pixels cannot be divided into the "
                                                 "patches of {} pixels of a vision transformer",
                                                 image_size, size.patch))
                      .hint(fmt::format("use a --size that is a multiple of {}", size.patch)));
  }
  const std::int64_t side = image_size / size.patch;
  return side * side + 1;  // and the class token
}

struct vision_transformer final : model {
  vision_transformer(const transformer_size& size, const model_terms& terms)
      : class_token(register_parameter("class_token", torch::zeros({1, 1, size.width}))),
        conv_proj(register_module(
            "conv_proj",
            nn::Conv2d(nn::Conv2dOptions(3, size.width, size.patch).stride(size.patch)))),
        tokens(register_module(
            "encoder", std::make_shared<encoder>(size, tokens_of(size, terms.image_size)))) {
    // torchvision cuts the distribution at 2, which no value of this deviation reaches. (Its own
    // method makes about one weight in 2^24 a 2 by rounding; this one does not.)
    nn::init::normal_(conv_proj->weight, 0, std::sqrt(1.0 / (3 * size.patch * size.patch)));
    nn::init::zeros_(conv_proj->bias);
    const nn::Linear head(size.width, terms.classes);
    nn::init::zeros_(head->weight);
    nn::init::zeros_(head->bias);
    heads->push_back("head", head);
    register_module("heads", heads);
  }

  torch::Tensor forward(torch::Tensor images) override {
    const auto patches = conv_proj(images).flatten(2).transpose(1, 2);
    const auto first = class_token.expand({images.size(0), -1, -1});
    const auto seen = tokens->forward(torch::cat({first, patches}, 1));
    return heads->forward(seen.select(1, 0));
  }

  torch::Tensor class_token;
  nn::Conv2d conv_proj;
  std::shared_ptr<encoder> tokens;
  nn::Sequential heads;
};

}  // namespace

std::vector<known_model> vision_transformers() {
  static constexpr transformer_size small{
      .patch = 16, .width = 384, .layers = 12, .heads = 6, .hidden = 1536};
  return {{.name = "vit_s_16",
           .make =
               [](const model_terms& terms) {
                 return std::make_shared<vision_transformer>(small, terms);
               },
           .takes_any_size = false,
           .smallest_size = small.patch,
           .size_step = small.patch}};
}

}  // namespace millrace
