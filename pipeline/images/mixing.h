#pragma once

#include <cstdint>

#include "pipeline/pixels/image.h"

namespace millrace {

// Parameters (alpha) of the Beta distributions from which the kept share of an image is drawn, 0 to
// 10^6; 0: off. If both are on, each batch is given to either with the same probability.
struct mixing_options {
  double mixup = 0;        // Zhang et al., "mixup" (ICLR 2018): both images, weighted
  double cutmix = 0;       // Yun et al., "CutMix" (ICCV 2019): a box of the other image
  std::uint64_t seed = 0;  // of the shares and boxes
};

// A function for map(), after batch(): mixes each image of a batch with the one before it (the
// first with the last), as torchvision's MixUp and CutMix do, and sets other_labels and share. A
// function of the seed and of the epoch and position of the batch's first sample. Thread-safe.
//
//   plan | batch({.size = 256}) | map(mix_images({.mixup = 0.2}), {.threads = 2})
class mix_images {
 public:
  // Throws `failure` (usage) for parameters out of range.
  explicit mix_images(const mixing_options& options);
  // The batch, mixed in place. Throws `failure` (usage) for a batch with encoded images, whose
  // slots hold files.
  host_batch operator()(host_batch batch) const;

 private:
  mixing_options options_;
};

}  // namespace millrace
