#pragma once

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/use_future.hpp>
#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <stop_token>
#include <utility>
#include <vector>

#include "engine/coroutines/async.h"
#include "io/source_counters.h"

namespace millrace {

// Wall time, and CPU time of the process, since construction.
class stopwatch_pair {
 public:
  stopwatch_pair();
  double seconds() const;
  double cpu_seconds() const;

 private:
  steady_clock::time_point begin_;
  double cpu_begin_;
};

// The figures of readers of files or objects. Rates in 10^6 bytes per second.
struct read_report {
  std::uint64_t bytes = 0;
  double seconds = 0;
  double cpu_seconds = 0;
  std::vector<double> rate_over_time;  // one for each `interval_s`
  double interval_s = 0.1;
  source_counters counters;  // of all readers
  bool interrupted = false;

  double mb_per_s() const { return seconds > 0 ? static_cast<double>(bytes) / 1e6 / seconds : 0; }
  // Per 1e9 bytes; nullopt if nothing was read.
  std::optional<double> cpu_s_per_gb() const {
    if (bytes == 0) return std::nullopt;
    return 1e9 * cpu_seconds / static_cast<double>(bytes);
  }
};

// A tenth of a second; less for runs below a second, so that there are always some intervals.
inline double interval_of(double seconds) {
  return std::min(0.1, seconds / 12);
}

// MB/s of each interval until `seconds` have passed, all of `running` have ended, or `stop` is
// requested. `given`: bytes so far.
std::vector<double> rates_over_time(const std::function<std::uint64_t()>& given,
                                    const std::vector<std::future<void>>& running, double seconds,
                                    double interval_s, const std::stop_token& stop);

// The sum of the parts' atomics `given`.
template <class Parts>
std::function<std::uint64_t()> given_by(const Parts& parts) {
  return [&parts] {
    std::uint64_t sum = 0;
    for (const auto& part : parts) sum += part->given.load(std::memory_order_relaxed);
    return sum;
  };
}

// Ends each of `parts` by `stop`, called on its I/O thread, and waits for those calls and for all
// of `running`; waiting for `running` alone is not enough, since it may end before the calls.
template <class Parts, class Stop>
void end_all(const Parts& parts, std::vector<std::future<void>>& running, Stop stop) {
  for (const auto& part : parts) {
    part->over = true;
    running.push_back(
        asio::post(part->io.context(), asio::use_future([p = part.get(), stop] { stop(*p); })));
  }
  for (auto& r : running) r.get();
}

// The same figure, also stored in `seen` if that is not null.
inline std::function<std::uint64_t()> counted_in(std::atomic<std::uint64_t>* seen,
                                                 std::function<std::uint64_t()> given) {
  if (seen == nullptr) return given;
  return [seen, given = std::move(given)] { return *seen = given(); };
}

}  // namespace millrace
