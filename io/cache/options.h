#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

template <class Options>
class option_list;

// The cache of fetched objects. Every field is also a MILLRACE_ variable.
struct cache_options {
  std::string folder = {};                 // empty: no cache
  std::uint64_t most_bytes = 0;            // of all entries; 0: as the disk allows
  std::uint64_t least_free = 1ULL << 30U;  // bytes to be left free on the disk
  // Files whose paths begin with one of these are cached as well.
  std::vector<std::string> paths = {};
  // Readers fetch an object themselves if the process that fills its entry gives no sign of life
  // for this long.
  std::chrono::milliseconds patience{5'000};

  static const option_list<cache_options>& variables();
};

}  // namespace millrace
