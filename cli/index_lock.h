#pragma once

#include <string>

#include "engine/file_system.h"

namespace millrace::cli {

// The index that is there, held until the new one has its name: of two runs at once, one would lose
// what the other has changed. Nothing where no file is there. Throws `failure` (usage) where
// another run holds it.
held_file hold_index(const std::string& path);

// The same where none was there: called when this run's own partial file is there. Of two runs that
// begin at once, one at least is refused.
void check_nobody_else_writes(const std::string& path);

}  // namespace millrace::cli
