#include "io/stores/store_url.h"

#include <utility>

namespace millrace {

std::string key_of(const url& where) {
  return where.path.empty() ? "" : where.path.substr(1);
}

key_and_option split_key(const url& where, std::string_view mark) {
  std::string key = key_of(where);
  const auto at = key.rfind(mark);
  if (at == std::string::npos) return {std::move(key), {}};
  std::string option = key.substr(at + mark.size());
  key.resize(at);
  return {std::move(key), std::move(option)};
}

result<url> parse_endpoint(const std::string& text, std::string_view variable) {
  auto endpoint = parse_url(text);
  if (!endpoint || !is_web(*endpoint)) {
    // Not shown: it may be a key meant for another variable.
    return error(errc::usage, std::string(variable) + " is not an http: or https: URL")
        .hint("write http://host[:port]");
  }
  while (endpoint->path.ends_with('/')) endpoint->path.pop_back();
  return endpoint;
}

}  // namespace millrace
