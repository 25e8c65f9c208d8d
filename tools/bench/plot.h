#pragma once

#include <string>
#include <vector>

namespace millrace {

// Draws values as a line of block characters, at most `columns` wide: each column is the mean of
// its values, as a share of the largest.
std::string sparkline(const std::vector<double>& values, std::size_t columns);

}  // namespace millrace
