#include "pipeline/stages/buckets.h"

#include <algorithm>
#include <functional>
#include <string>

namespace millrace::detail {

result<std::size_t> bucket_for(const std::vector<bucket>& buckets, std::int64_t size) {
  const auto fits = std::ranges::lower_bound(buckets, size, {}, &bucket::up_to);
  if (fits == buckets.end()) {
    return error(errc::too_large, "no bucket takes an item of size " + std::to_string(size))
        .hint("add a bucket that takes it, or leave it out upstream")
        .skippable();
  }
  return static_cast<std::size_t>(fits - buckets.begin());
}

void check_buckets(const std::vector<bucket>& buckets) {
  const bool ascends = std::ranges::adjacent_find(buckets, std::ranges::greater_equal(),
                                                  &bucket::up_to) == buckets.end();
  const bool takes = std::ranges::all_of(buckets, [](const bucket& b) { return b.size > 0; });
  if (buckets.empty() || !ascends || !takes) {
    throw failure(error(errc::usage, "buckets do not ascend, or one of them takes no items"));
  }
}

}  // namespace millrace::detail
