#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/result.h"

namespace millrace {

std::string step_name(std::int64_t step);  // step-NNNNNNNNNN
bool is_step_name(std::string_view name);

// Paths of the folders in `folder` whose names are `wanted`, in the order of their names; none
// where there is no such folder.
result<std::vector<std::string>> folders_in(const std::string& folder,
                                            bool (*wanted)(std::string_view));

// The checkpoints in `folder`, oldest first: folders named by step_name(), whole or damaged. Throws
// `failure` (io_failed) where the file system refuses.
std::vector<std::string> checkpoints_in(const std::string& folder);

}  // namespace millrace
