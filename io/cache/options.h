#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/settings.h"

namespace millrace {

// Of the cache of fetched objects. Every field is also a MILLRACE_ variable.
struct cache_options {
  std::string folder;              // empty: no cache
  std::uint64_t most_bytes = 0;    // of all entries; 0: as the disk allows
  std::uint64_t least_free = 0;    // to be left on the disk
  std::vector<std::string> paths;  // files whose path begins with one of these are cached as well
  // After so long without a sign of the process that fills an entry, its readers fetch the object
  // themselves.
  std::chrono::milliseconds patience{5'000};

  static cache_options from(const settings& s);
};

}  // namespace millrace
