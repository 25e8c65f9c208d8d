// The scores of one of millrace-train's models, for comparisons with other programs:
//
//   model_scores MODEL CLASSES WEIGHTS IMAGES SCORES
//
// WEIGHTS has a state dict, IMAGES `images`, N x 3 x H x H float; SCORES is written, with `scores`,
// N x CLASSES (all safetensors). The model is in evaluation mode.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <span>

#include "engine/base/error.h"
#include "train/models/known_models.h"
#include "train/models/safetensors.h"
#include "train/models/weights.h"

using namespace millrace;

int main(int argc, char** argv) try {
  const std::span words(argv, static_cast<std::size_t>(argc));
  if (words.size() != 6) {
    std::fprintf(stderr, "usage: model_scores MODEL CLASSES WEIGHTS IMAGES SCORES\n");
    return 2;
  }
  const torch::NoGradGuard no_grad;
  const auto images = load_tensors(words[4]).at("images");
  const auto net = model_named(words[1]).make(
      {.classes = std::atoi(words[2]), .image_size = static_cast<int>(images.size(3))});
  load_weights(*net, load_tensors(words[3]), words[3]);
  net->eval();
  const auto scores = net->forward(images.contiguous(at::MemoryFormat::ChannelsLast));
  save_tensors(words[5], {{"scores", scores.contiguous()}});
  return 0;
} catch (const failure& f) {
  std::fprintf(stderr, "model_scores: %s\n", f.what());
  return exit_code(f.kind());
}
