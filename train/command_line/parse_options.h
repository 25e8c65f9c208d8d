#pragma once

#include <optional>
#include <vector>

#include "train/command_line/options.h"

namespace millrace {

// A parsed command line.
struct parsed_options {
  train_options options;         // valid unless `exit_code` is set
  std::optional<int> exit_code;  // set: end with it, after --help or --version
};
// Parses and checks the command line of millrace-train, which has the models `own` as well. Prints
// what --help and --version ask for. Throws `failure` (usage).
parsed_options parse_train_options(int argc, char** argv, std::vector<known_model> own = {});

}  // namespace millrace
