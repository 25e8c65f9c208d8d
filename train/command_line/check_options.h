#pragma once

#include <string>
#include <vector>

#include "train/command_line/options.h"

namespace millrace {

// Throws `failure` (usage) if options that are each within their range cannot be combined.
void check_options(const train_options& o);
// Throws `failure` (usage) for an option without effect: it is a mistake, and the rest of the
// command line is not what the user meant. `words`: the command line; options of a recipe may lose
// their effect by those that are given beside it.
void check_effects(const std::vector<std::string>& words, const train_options& o);

}  // namespace millrace
