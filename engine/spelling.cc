#include "engine/spelling.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace millrace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

std::string nearest_of(std::string_view name, std::span<const std::string> known) {
  const auto nearest = std::ranges::min_element(
      known, {}, [&](const std::string& each) { return edit_distance(each, name); });
  return nearest == known.end() ? std::string() : *nearest;
}

std::string near_of(std::string_view name, std::span<const std::string> known, std::size_t prefix) {
  std::string nearest = nearest_of(name, known);
  const std::size_t longer = std::max(name.size(), nearest.size());
  return 2 * edit_distance(name, nearest) + prefix <= longer ? nearest : "";
}

}  // namespace millrace
