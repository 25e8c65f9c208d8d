#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/files/written_file.h"

namespace millrace::cli {

// The kinds of files that commands write, for check_output().
extern const file_kind png_file;
extern const file_kind state_file;  // of state::to_json()
extern const file_kind crops_file;  // of bench decode: lines of five numbers

}  // namespace millrace::cli
