#pragma once

#include <vector>

#include "train/models/model.h"

namespace millrace {

// ConvNeXt-T (Liu et al. 2022) with torchvision's architecture, parameter names and initialisation.
// In training, each residual branch of an image is left out with a probability that grows from 0 in
// the first block to 0.1 in the last (stochastic depth), drawn from torch's global generator.
std::vector<known_model> convnexts();

}  // namespace millrace
