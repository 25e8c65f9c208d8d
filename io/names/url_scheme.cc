#include "io/names/url_scheme.h"

#include <algorithm>

namespace millrace {

bool has_scheme(std::string_view text) {
  if (text.empty() || text == "-") return false;
  const auto where = parse_url(text);
  // For a path, the two are equal; for a file: URL, the path lacks the scheme.
  return !where || where->scheme != "file" || where->path != text;
}

bool is_of_store(std::string_view scheme) {
  return std::ranges::find(store_schemes, scheme) != store_schemes.end();
}

bool is_on_network(const url& u) {
  const bool is_known = u.scheme == "http" || u.scheme == "https" || is_of_store(u.scheme);
  return is_known && !u.host.empty() && u.socket.empty();
}

}  // namespace millrace
