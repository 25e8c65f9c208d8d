#pragma once

#include <string>

namespace millrace::testing {

// `size` bytes in which every place is distinguishable from every other: "0,1,2,3,...".
inline std::string numbered(std::size_t size) {
  std::string out;
  for (std::size_t i = 0; out.size() < size; ++i) out += std::to_string(i) + ",";
  out.resize(size);
  return out;
}

}  // namespace millrace::testing
