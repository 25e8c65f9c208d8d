#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace millrace {

// Expands shell-like braces exactly as the Python package braceexpand 0.1.7 (which WebDataset
// uses) does: {a,b}, {000..010}, {01..10..3}, {a..e}, nested, `\` escapes; braces that enclose
// neither a list nor a range stay. Fails with `usage` when braces do not balance.
result<std::vector<std::string>> brace_expand(std::string_view pattern);

}  // namespace millrace
