#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <vector>

#include "engine/async.h"

namespace millrace {

// Wall time, and CPU time of the process, since it was made.
class stopwatch_pair {
 public:
  stopwatch_pair();
  double seconds() const;
  double cpu_seconds() const;

 private:
  steady_clock::time_point begin_;
  double cpu_begin_;
};

// MB/s of each interval until `seconds` have passed, all of `running` have ended, or `interrupted`.
// `given`: bytes so far.
std::vector<double> rates_over_time(const std::function<std::uint64_t()>& given,
                                    const std::vector<std::future<void>>& running, double seconds,
                                    double interval_s, const std::atomic<bool>& interrupted);

// The sum of what parts have `given` (an atomic of theirs) so far.
template <class Parts>
std::function<std::uint64_t()> given_by(const Parts& parts) {
  return [&parts] {
    std::uint64_t sum = 0;
    for (const auto& part : parts) sum += part->given.load(std::memory_order_relaxed);
    return sum;
  };
}

}  // namespace millrace
