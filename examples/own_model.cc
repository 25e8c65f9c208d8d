// A model of your own, with everything that millrace-train has: ranks, checkpoints, signals,
// validation, metrics. This one attends from patch to patch of an image.
//
//   example_own_model --shards 'train-{000000..000003}.tar' --classes 10 --size 32 --epochs 3
//
// On two ranks of this host: with --nproc 2. Under torchrun:
//
//   torchrun --no-python --nproc-per-node 2 example_own_model ...
#include <millrace/error.h>
#include <millrace/train.h>
#include <torch/torch.h>

#include <memory>

using namespace millrace;

namespace {

namespace nn = torch::nn;

constexpr int patch = 8;  // pixels
constexpr int width = 64;

struct patch_attention final : model {
  explicit patch_attention(const model_terms& terms)
      : patches(register_module("patches",
                                nn::Conv2d(nn::Conv2dOptions(3, width, patch).stride(patch)))),
        places(register_parameter("places", torch::randn({count(terms), 1, width}) * 0.02)),
        attention(register_module("attention", nn::MultiheadAttention(width, 4))),
        norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})))),
        head(register_module("head", nn::Linear(width, terms.classes))) {}

  static std::int64_t count(const model_terms& terms) {
    if (terms.image_size % patch != 0) {
      throw failure(error(errc::usage, "--size must be a multiple of the patches' 8 pixels"));
    }
    const std::int64_t side = terms.image_size / patch;
    return side * side;
  }

  // N x 3 x H x W images to N x classes scores.
  torch::Tensor forward(torch::Tensor images) override {
    const auto sequence = patches(images).flatten(2).permute({2, 0, 1}) + places;
    const auto normed = norm(sequence);
    const auto mixed = std::get<0>(attention(normed, normed, normed)) + sequence;
    return head(mixed.mean(0));
  }

  nn::Conv2d patches;
  torch::Tensor places;
  nn::MultiheadAttention attention;
  nn::LayerNorm norm;
  nn::Linear head;
};

}  // namespace

int main(int argc, char** argv, char** environment) {
  const auto make = [](const model_terms& terms) {
    return std::make_shared<patch_attention>(terms);
  };
  return train_main(argc, argv, environment,
                    {{.name = "patch-attention", .make = make, .takes_any_size = false}});
}
