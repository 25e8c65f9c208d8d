#pragma once

#include <string>
#include <string_view>

#include "engine/base/error.h"

namespace millrace {

// 16 hexadecimal digits that no other call returns, for the name of a run or of a process.
std::string unique_name();

// Small files and folders, for checkpoints. Throw `failure` that names the file. write_file syncs
// the bytes to disk (fsync); it is not atomic: write under another name, then rename.
void write_file(const std::string& file, std::string_view content);
// Syncs a folder's names to disk.
void sync_names_in(const std::string& folder);
// The error that `path` cannot be written, with what to do. `why`: an errno.
error cannot_write(const std::string& what, const std::string& path, int why);
// `why`: an errno.
[[noreturn]] void throw_failed_call(const std::string& file, const char* what, int why);

}  // namespace millrace
