#pragma once

#include <string>

#include "engine/file_system.h"

namespace millrace::cli {

// Locks the existing index until the new one has replaced it: otherwise one of two concurrent runs
// would lose the other's changes. Empty if there is no file. Throws `failure` (usage) if another
// run holds it.
held_file hold_index(const std::string& path);

// The same if there was no index: call it once this run's own partial file exists. Of two runs that
// begin at once, at least one is refused.
void check_nobody_else_writes(const std::string& path);

}  // namespace millrace::cli
