#include "train/models/known_models.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>

#include "engine/base/error.h"
#include "train/models/convnext.h"
#include "train/models/resnet.h"
#include "train/models/vision_transformer.h"

namespace millrace {
namespace {

namespace nn = torch::nn;

struct trivial final : model {
  trivial(int classes, int image_size)
      : fc(register_module("fc", nn::Linear(3 * image_size * image_size, classes))) {}
  torch::Tensor forward(torch::Tensor x) override { return fc(torch::flatten(x.contiguous(), 1)); }
  nn::Linear fc;
};

}  // namespace

const std::vector<known_model>& known_models() {
  const auto made = [] {
    std::vector<known_model> all = resnets();
    for (auto family : {vision_transformers, convnexts}) {
      for (known_model& one : family()) all.push_back(std::move(one));
    }
    all.push_back({.name = "trivial",
                   .make =
                       [](const model_terms& terms) {
                         return std::make_shared<trivial>(terms.classes, terms.image_size);
                       },
                   .takes_any_size = false});
    return all;
  };
  static const auto& all = *new std::vector<known_model>(made());
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
