#include "io/names/rewrites.h"

#include <algorithm>

#include "engine/base/words.h"

namespace millrace {

std::string rewritten(const std::string& url, const rewrite_rules& rules) {
  const auto rule =
      std::ranges::find_if(rules, [&](const auto& r) { return url.starts_with(r.first); });
  return rule == rules.end() ? url : rule->second + url.substr(rule->first.size());
}

result<rewrite_rules> parse_rewrites(const std::string& text) {
  rewrite_rules rules;
  for (const std::string& part : split(text, ';')) {
    const auto equals = part.find('=');
    if (equals == 0 || equals == std::string::npos) {
      return error(errc::bad_setting, "MILLRACE_REWRITE has a part that is not from=to")
          .hint("write s3://bucket/=http://host/copy/;gs://other/=/mnt/other/");
    }
    rules.emplace_back(part.substr(0, equals), part.substr(equals + 1));
  }
  return rules;
}

}  // namespace millrace
