#pragma once

#include <string>
#include <vector>

#include "train/command_line/options.h"
#include "train/command_line/recipe.h"

namespace millrace {

// Throws `failure` (usage) if options that are each within their range cannot be combined.
void check_options(const train_options& o);
// Throws `failure` (usage) for an option without effect: it is a mistake, and the rest of the
// command line, or of the recipe, is not what the user meant. `words`: the command line, which may
// take the effect from options of the recipe.
void check_effects(const std::vector<std::string>& words, const recipe_text& recipe,
                   const train_options& o);

}  // namespace millrace
