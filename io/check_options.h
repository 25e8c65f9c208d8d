#pragma once

#include "io/options.h"

namespace millrace {

// Throws `failure` (usage) for the first number that is out of its range, with its name, its value
// and the range. The ranges are at least those of the MILLRACE_ variables.
void check(const source_options& options);

}  // namespace millrace
