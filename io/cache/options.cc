#include "io/cache/options.h"

#include <sstream>

namespace millrace {

cache_options cache_options::from(const settings& s) {
  const auto text = [&](const char* name) {
    const std::string& value = s.text(name);
    return value == "auto" ? std::string() : value;
  };
  cache_options o{.folder = text("MILLRACE_CACHE"),
                  .most_bytes = s.bytes("MILLRACE_CACHE_SIZE"),
                  .least_free = s.bytes("MILLRACE_CACHE_FREE"),
                  .paths = {},
                  .patience = s.seconds("MILLRACE_GATE_PATIENCE")};
  std::istringstream paths(text("MILLRACE_CACHE_PATHS"));
  for (std::string path; std::getline(paths, path, ';');) {
    if (!path.empty()) o.paths.push_back(path);
  }
  return o;
}

}  // namespace millrace
