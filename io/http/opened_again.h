#pragma once

#include "engine/result.h"
#include "io/http/transfer.h"
#include "io/source.h"

namespace millrace {

// Writes down what an object is known by, where nobody has yet.
void note(opened_version& in, const object_version& seen);
// What was written down; nothing where nobody has.
object_version noted(const opened_version& in);
// Writes it down, or fails with `changed` where another version was.
result<void> compared(opened_version& with, const object_version& now);

}  // namespace millrace
