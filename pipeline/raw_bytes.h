#pragma once

#include <string>
#include <vector>

#include "pipeline/plan.h"

namespace millrace {

// The bytes of `urls`, one object after the other, as read: for copying them. One epoch. A failed
// object ends the stream.
plan<bytes> raw_bytes(std::vector<std::string> urls);

}  // namespace millrace
