#include "io/names/url_scheme.h"

#include <algorithm>
#include <array>

namespace millrace {

bool has_scheme(std::string_view text) {
  if (text.empty() || text == "-") return false;
  const auto where = parse_url(text);
  // For a path, the two are equal; for a file: URL, the path lacks the scheme.
  return !where || where->scheme != "file" || where->path != text;
}

bool is_on_network(const url& u) {
  static constexpr std::array<std::string_view, 7> known = {"http", "https", "s3", "gs",
                                                            "az",   "ais",   "hf"};
  return std::ranges::find(known, u.scheme) != known.end() && !u.host.empty() && u.socket.empty();
}

}  // namespace millrace
