#include "engine/base/spelling.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace millrace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  std::vector<std::size_t> before;
  std::vector<std::size_t> two_before;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    two_before = std::exchange(before, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = before[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, before[j] + 1, row[j - 1] + 1});
      const bool is_swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (is_swapped) row[j] = std::min(row[j], two_before[j - 2] + 1);
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
