#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/result.h"

namespace millrace {

std::string step_name(std::int64_t step);  // step-NNNNNNNNNN
bool is_step_name(std::string_view name);

// Names that a run uses in its folder of checkpoints: ".partial-step-NNNNNNNNNN" for a checkpoint
// being written or removed, ".replaced-step-NNNNNNNNNN" for one being replaced, and the lock.
inline constexpr std::string_view partial_prefix = ".partial-";
inline constexpr std::string_view replaced_prefix = ".replaced-";
inline constexpr std::string_view lock_name = ".lock";
bool is_partial_name(std::string_view name);
bool is_replaced_name(std::string_view name);
// One of them, or is_step_name().
bool is_name_of_run(std::string_view name);

// Paths of the folders in `folder` whose names are `wanted`, ordered by name; none if `folder` does
// not exist.
result<std::vector<std::string>> folders_in(const std::string& folder,
                                            bool (*wanted)(std::string_view));

// The checkpoints in `folder`, oldest first: folders named by step_name(), whole or damaged. Throws
// `failure` (io_failed) if the file system refuses.
std::vector<std::string> checkpoints_in(const std::string& folder);

}  // namespace millrace
