#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/written_file.h"

namespace millrace::cli {

// The kinds of files that commands write, for check_output().
extern const file_kind png_file;
extern const file_kind crops_file;  // of bench decode: lines of five numbers
extern const file_kind index_document;
extern const file_kind index_sidecar;

// The paths of those URLs that are local files, including standard input.
std::vector<std::string> local_paths(std::span<const std::string> urls);

}  // namespace millrace::cli
