#pragma once

#include "train/options.h"

namespace millrace {

// The learning rate at `epoch` (a fraction: 2.5 is half-way through the third) of `epochs`. A pure
// function.
double learning_rate(const optimizer_options& o, double epoch, double epochs);

}  // namespace millrace
