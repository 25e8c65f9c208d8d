#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

template <class Options>
class option_list;

// Of the cache of fetched objects. Every field is also a MILLRACE_ variable.
struct cache_options {
  std::string folder = {};                 // empty: no cache
  std::uint64_t most_bytes = 0;            // of all entries; 0: as the disk allows
  std::uint64_t least_free = 1ULL << 30U;  // to be left on the disk
  std::vector<std::string> paths =
      {};  // files whose path begins with one of these are cached as well
  // After so long without a sign of the process that fills an entry, its readers fetch the object
  // themselves.
  std::chrono::milliseconds patience{5'000};

  static const option_list<cache_options>& variables();
};

}  // namespace millrace
