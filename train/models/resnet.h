#pragma once

#include <vector>

#include "train/models/model.h"

namespace millrace {

// ResNet-18, -34, -50 and -101 (He et al. 2015) with torchvision's architecture (v1.5: the stride
// is in the 3x3 convolution), parameter names and initialisation.
std::vector<known_model> resnets();

}  // namespace millrace
