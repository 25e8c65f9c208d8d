#pragma once

#include "engine/base/result.h"
#include "io/http/transfer.h"
#include "io/source.h"

namespace millrace {

// Records the version of an object, unless one is recorded.
void note(opened_version& in, const object_version& seen);
// The recorded version; empty if there is none.
object_version noted(const opened_version& in);
// Records the version, or fails with `changed` if another one is recorded.
result<void> compared(opened_version& with, const object_version& now);

}  // namespace millrace
