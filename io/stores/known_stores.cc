#include "io/stores/known_stores.h"

#include <algorithm>
#include <vector>

#include "engine/base/words.h"
#include "io/http/options.h"

namespace millrace {

bool is_of_store(std::string_view scheme) {
  return std::ranges::any_of(known_stores, [&](auto* store) { return store->scheme == scheme; });
}

std::string scheme_of(std::string_view url) {
  const auto end = url.find("://");
  return end == std::string_view::npos ? "" : lowered(url.substr(0, end));
}

const known_store* store_of(std::string_view url) {
  const auto found = std::ranges::find(known_stores, scheme_of(url), &known_store::scheme);
  return found == known_stores.end() ? nullptr : *found;
}

bool is_on_network(const url& u) {
  return (is_web(u) || is_of_store(u.scheme)) && !u.host.empty() && u.socket.empty();
}

std::span<const foreign_variable> foreign_variables() {
  static const auto& all = *new auto([] {
    const auto of_http = http_options::foreign_variables();
    std::vector<foreign_variable> list(of_http.begin(), of_http.end());
    for (const known_store* store : known_stores) {
      list.insert(list.end(), store->variables.begin(), store->variables.end());
    }
    return list;
  }());
  return all;
}

}  // namespace millrace
