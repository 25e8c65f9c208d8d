#pragma once

#include <c10/util/Exception.h>

#include "engine/base/error.h"

namespace millrace {

// What torch has thrown, in one line, without its stack: device_failed if a GPU or its driver has
// failed, no_memory if it has none left, unsupported if --deterministic leaves no kernel, else
// internal.
error error_of_torch(const c10::Error& e);

}  // namespace millrace
