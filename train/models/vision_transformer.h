#pragma once

#include <vector>

#include "train/models/model.h"

namespace millrace {

// ViT-S/16 (Dosovitskiy et al. 2020, in the size of Touvron et al. 2020): patches of 16 pixels,
// width 384, 12 layers of 6 heads, mlp 1536, no dropout. Architecture, parameter names and
// initialisation are those of torchvision's VisionTransformer. It takes images of one size, a
// multiple of 16.
std::vector<known_model> vision_transformers();

}  // namespace millrace
