#pragma once

#include <cstdint>

#include "pipeline/images/image.h"

namespace millrace {

// Parameters of the Beta distributions from which the kept share of an image is drawn; 0: off.
// Where both are done, each batch is given to either with the same probability.
struct mixing_options {
  double mixup = 0;   // Zhang et al., "mixup" (ICLR 2018): both images, weighted
  double cutmix = 0;  // Yun et al., "CutMix" (ICCV 2019): a box of the other image
  std::uint64_t seed = 0;
};

// A function for map(), after batch(): mixes each image of a batch with the one before it (the
// first with the last), as torchvision's MixUp and CutMix do, and says in other_labels and share
// what became of the labels. A function of the seed and of where the batch's first sample stands.
//
//   plan | batch({.size = 256}) | map(mix_images({.mixup = 0.2}), {.threads = 2})
class mix_images {
 public:
  // Throws `failure` (usage) for parameters below 0.
  explicit mix_images(const mixing_options& options);
  host_batch operator()(host_batch batch) const;

 private:
  mixing_options options_;
};

}  // namespace millrace
