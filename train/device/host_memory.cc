#include "train/device/host_memory.h"

#include <malloc.h>

#include <cstdlib>
#include <limits>
#include <string_view>

namespace millrace {
namespace {

// The user's own values, by either of glibc's ways.
bool thresholds_are_given() {
  const char* const tunables = std::getenv("GLIBC_TUNABLES");
  return std::getenv("MALLOC_MMAP_THRESHOLD_") != nullptr ||
         std::getenv("MALLOC_TRIM_THRESHOLD_") != nullptr ||
         (tunables != nullptr &&
          std::string_view(tunables).find("_threshold=") != std::string_view::npos);
}

}  // namespace

void keep_freed_memory() {
  if (thresholds_are_given()) return;
  mallopt(M_MMAP_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
}

}  // namespace millrace
