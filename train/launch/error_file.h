#pragma once

#include "engine/base/error.h"

namespace millrace {

// Leaves the error by which a process ends for torchrun, where TORCHELASTIC_ERROR_FILE says, which
// then names it as the root cause of the job's end. A lost peer is the consequence of another
// rank's failure: it is dated after that one. Without the variable, or if the file cannot be
// written, does nothing.
void write_error_file(const error& why) noexcept;

}  // namespace millrace
