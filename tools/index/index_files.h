#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/files/file_system.h"
#include "engine/files/written_file.h"

namespace millrace {

// The functions that writers of index files have in common.

// The kinds of their files, for check_output().
extern const file_kind index_document;
extern const file_kind index_sidecar;

// A string of JSON, in ASCII and in its quotes. What is not UTF-8 is replaced.
std::string quoted_json(const std::string& text);

// Formatted like Python's json.dump(indent=2).
std::string python_json(const nlohmann::ordered_json& value);

// Reads a whole local file. Throws `failure` if it cannot be read.
std::string read_local(const std::string& path);

// Locks the existing index until the new one has replaced it: otherwise one of two concurrent runs
// would lose the other's changes. Empty if there is no file. Throws `failure` (usage) if another
// run holds it.
held_file hold_index(const std::string& path);

// The same if there was no index: call it once this run's own partial file exists. Of two processes
// that begin at once, at least one is refused.
void check_nobody_else_writes(const std::string& path);

}  // namespace millrace
