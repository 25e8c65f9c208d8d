#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace millrace {

// The targets of the loss of N images.
struct loss_terms {
  torch::Tensor labels;        // N int64
  torch::Tensor other_labels;  // of mixed images, N int64; else undefined
  double share = 1;            // weight of `labels`; `other_labels` have the rest
  double smoothing = 0;        // label smoothing, 0 to 1
};

// The loss of a batch, and the scores that it is taken of.
struct scored_batch {
  torch::Tensor loss;    // the mean over the images
  torch::Tensor scores;  // N x classes
};

// A network from NCHW float images to class scores.
class model : public torch::nn::Module {
 public:
  // The scores, N x classes, of N x 3 x H x W images as to_device gives them.
  virtual torch::Tensor forward(torch::Tensor images) = 0;
  // What a step of training goes by: loss.backward() gives the gradients of the parameters. Cross
  // entropy of forward()'s scores, unless a model has a loss of its own.
  virtual scored_batch loss_of(torch::Tensor images, const loss_terms& terms);
};

// The sizes that a model has to fit.
struct model_terms {
  int classes = 0;     // scores of an image
  int image_size = 0;  // side in pixels, the largest that images have
  // Whether the last normalisation of each residual block begins with weights 0, so that the block
  // begins as its shortcut; for models with known_model::has_last_norm.
  bool zero_last_norm = false;
};

// A model that --model names.
struct known_model {
  std::string name;  // such as "resnet50"
  // Makes it, with initial weights from torch's global generator.
  std::function<std::shared_ptr<model>(const model_terms&)> make;
  bool takes_any_size = true;  // of images; else only model_terms::image_size
  // Smallest side of the images, in pixels, at which batch normalisation sees more than one value
  // of each image. 0: any side, or a model without batch normalisation.
  int side_of_one_value = 0;
  bool has_last_norm = false;  // whether it uses model_terms::zero_last_norm
  int smallest_size = 1;       // of images, side in pixels
  int size_step = 1;           // the side of images is a multiple of it, in pixels
};

}  // namespace millrace
