#include "io/names/url_scheme.h"

#include "io/names/url.h"

namespace millrace {

bool has_scheme(std::string_view text) {
  if (text.empty() || text == "-") return false;
  const auto where = parse_url(text);
  // For a path, the two are equal; for a file: URL, the path lacks the scheme.
  return !where || where->scheme != "file" || where->path != text;
}

}  // namespace millrace
