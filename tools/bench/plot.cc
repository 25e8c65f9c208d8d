#include "tools/bench/plot.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace millrace {

std::string sparkline(const std::vector<double>& values, std::size_t columns) {
  constexpr std::array blocks{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  columns = std::min(columns, values.size());
  std::vector<double> means;
  for (std::size_t c = 0; c < columns; ++c) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(c * values.size() / columns);
    const auto end =
        values.begin() + static_cast<std::ptrdiff_t>((c + 1) * values.size() / columns);
    means.push_back(std::accumulate(begin, end, 0.0) / static_cast<double>(end - begin));
  }
  const double most = means.empty() ? 0 : std::ranges::max(means);
  std::string line;
  for (const double mean : means) {
    const double height = most > 0 ? mean / most * (blocks.size() - 1) : 0;
    line += blocks.at(static_cast<std::size_t>(std::max(0.0, height) + 0.5));
  }
  return line;
}

}  // namespace millrace
