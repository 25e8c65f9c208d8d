#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/base/result.h"

namespace millrace {

// Rules that replace a prefix of URLs: the prefix and its replacement.
using rewrite_rules = std::vector<std::pair<std::string, std::string>>;

// The URL with its prefix replaced by the first rule that matches; unchanged if none does. Pure.
std::string rewritten(const std::string& url, const rewrite_rules& rules);

// Parses "from=to;from=to". Fails with bad_setting. Pure.
result<rewrite_rules> parse_rewrites(const std::string& text);

}  // namespace millrace
