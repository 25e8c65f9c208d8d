#include "train/models/model.h"

#include <torch/torch.h>

#include <utility>

namespace millrace {

// For mixed images, the losses of both labels, weighted by their shares.
scored_batch model::loss_of(torch::Tensor images, const loss_terms& terms) {
  const auto scores = forward(std::move(images));
  const auto of = [&](const torch::Tensor& labels) {
    return torch::nn::functional::cross_entropy(
        scores, labels,
        torch::nn::functional::CrossEntropyFuncOptions().label_smoothing(terms.smoothing));
  };
  if (!terms.other_labels.defined()) return {of(terms.labels), scores};
  return {terms.share * of(terms.labels) + (1 - terms.share) * of(terms.other_labels), scores};
}

}  // namespace millrace
