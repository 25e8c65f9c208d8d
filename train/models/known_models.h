#pragma once

#include <string>
#include <vector>

#include "train/models/model.h"

namespace millrace {

// resnets(), vision_transformers(), convnexts(), and "trivial": one linear layer on the pixels.
const std::vector<known_model>& known_models();

// The names of `own` and of the known models.
std::vector<std::string> model_names(const std::vector<known_model>& own = {});
// The one named `name` of `own` and the known models, which `own` comes before. Throws `failure`
// (usage) if there is none.
const known_model& model_named(const std::string& name, const std::vector<known_model>& own = {});

}  // namespace millrace
