#pragma once

#include <vector>

#include "train/models/model.h"

namespace millrace {

// millrace-train as a function: a program whose main() returns this has all of its options, and
// --model names one of `own` as well; the first of them is the default. Takes over signals as
// signal_watch does. Returns the exit code; throws nothing. Call it once. Example:
// examples/own_model.cc.
int train_main(int argc, char** argv, char** environment, std::vector<known_model> own = {});

}  // namespace millrace
