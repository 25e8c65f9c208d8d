#pragma once

#include <string>
#include <vector>

#include "pipeline/plan/plan.h"

namespace millrace {

// Yields the bytes of `urls`, one object after the other, unchanged, for copying them. One epoch.
// An object that fails ends the stream.
plan<bytes> raw_bytes(std::vector<std::string> urls);

}  // namespace millrace
