#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace millrace {

// What the loss of N images is taken against.
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

// What a model has to fit.
struct model_terms {
  int classes = 0;     // scores of an image
  int image_size = 0;  // side in pixels, the largest that images have
};

// A model that --model names.
struct known_model {
  std::string name;  // such as "resnet50"
  // Makes it, with initial weights from torch's global generator.
  std::function<std::shared_ptr<model>(const model_terms&)> make;
  bool takes_any_size = true;  // of images; else only model_terms::image_size
  // The side of the images, in pixels, from which its normalisation over the batch has more than
  // one value of each image; 0: it has no such normalisation, or always more.
  int side_of_one_value = 0;
};

// ResNet-18, -34 and -50 with torchvision's architecture (v1.5: the stride is in the 3x3
// convolution), parameter names and initialisation, and "trivial": one linear layer on the pixels.
const std::vector<known_model>& known_models();

// The names of `own` and of the known models.
std::vector<std::string> model_names(const std::vector<known_model>& own = {});
// The one named `name` of `own` and the known models, which `own` comes before. Throws `failure`
// (usage) if there is none.
const known_model& model_named(const std::string& name, const std::vector<known_model>& own = {});

}  // namespace millrace
