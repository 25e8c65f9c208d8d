#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace millrace {

// Looks up ${NAME} in a shard spec; nullopt: not set.
using variable_lookup = std::function<std::optional<std::string>(const std::string& name)>;
// The lookup that WebDataset uses: NAME is the variable WDS_NAME of the environment.
variable_lookup wds_variables();

// The shards that `spec` names, in its order: parts separated by "::", in each of which ${NAME} is
// substituted (up to 10 rounds) and braces are expanded. A part "@FILE" stands for the specs in
// FILE, one on each line, without blank lines and lines that begin with '#'; "@-" reads them from
// stdin. "-" is stdin itself. Fails with `usage`, or with not_found for an unreadable list.
result<std::vector<std::string>> expand_shards(std::string_view spec,
                                               const variable_lookup& variables = wds_variables());
result<std::vector<std::string>> expand_shards(std::span<const std::string> specs,
                                               const variable_lookup& variables = wds_variables());

// Like expand_shards(), but throws `failure`: for the head of a plan,
// shards(expand("train-{000000..000099}.tar")). find_shards() also lists folders and stores.
std::vector<std::string> expand(std::string_view spec);

}  // namespace millrace
