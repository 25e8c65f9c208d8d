#pragma once

#include <string>
#include <vector>

namespace millrace {

// Values as a line of block characters, `columns` wide at most: each column is the mean of its
// values, as a share of the largest.
std::string sparkline(const std::vector<double>& values, std::size_t columns);

}  // namespace millrace
