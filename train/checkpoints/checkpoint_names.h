#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace millrace {

// The beginning of step_name().
inline constexpr std::string_view step_prefix = "step-";
// The name of the folder of a step's checkpoint: step-NNNNNNNNNN, ten digits.
std::string step_name(std::int64_t step);
// Whether it is the name of such a folder.
bool is_step_name(std::string_view name);

// Before step_name(): a checkpoint being written or removed.
inline constexpr std::string_view partial_prefix = ".partial-";
// Before step_name(): a checkpoint being replaced.
inline constexpr std::string_view replaced_prefix = ".replaced-";
// The lock of a folder of checkpoints.
inline constexpr std::string_view lock_name = ".lock";
// Whether it is a name with partial_prefix.
bool is_partial_name(std::string_view name);
// Whether it is a name with replaced_prefix.
bool is_replaced_name(std::string_view name);
// Whether a run uses this name in its folder of checkpoints: one of the above.
bool is_name_of_run(std::string_view name);

// Paths of the folders in `folder` whose names are `wanted`, ordered by name; none if `folder` does
// not exist.
result<std::vector<std::string>> folders_in(const std::string& folder,
                                            bool (*wanted)(std::string_view));

// The checkpoints in `folder`, oldest first: folders named by step_name(), whole or damaged. Throws
// `failure` (io_failed) if the file system refuses.
std::vector<std::string> checkpoints_in(const std::string& folder);

}  // namespace millrace
