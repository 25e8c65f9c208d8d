#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/result.h"

namespace millrace {

// Looks up ${NAME} in a shard spec. WebDataset gives WDS_NAME from the environment.
using variable_lookup = std::function<std::optional<std::string>(const std::string& name)>;
variable_lookup wds_variables();

// The shards that `spec` names, in its order: parts separated by "::", each with ${NAME}
// substituted (up to 10 rounds) and braces expanded. A part "@FILE" stands for the specs in FILE,
// one a line, blank lines and lines that begin with '#' left out ("@-": on stdin); "-" is stdin
// itself. Fails with `usage` or, for an unreadable list, not_found.
result<std::vector<std::string>> expand_shards(std::string_view spec,
                                               const variable_lookup& variables = wds_variables());
result<std::vector<std::string>> expand_shards(std::span<const std::string> specs,
                                               const variable_lookup& variables = wds_variables());

// The same, throwing `failure`: for the head of a plan.
std::vector<std::string> expand(std::string_view spec);

}  // namespace millrace
