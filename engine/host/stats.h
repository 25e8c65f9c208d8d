#pragma once

#include <array>
#include <cstdint>

#include "engine/host/clock.h"

namespace millrace {

// Durations of single operations, counted in classes an eighth of a power of two wide: a percentile
// is right within 9 %.
class latency_histogram {
 public:
  // Counts one duration.
  void add(double seconds);
  // Counts all those of another one.
  void add(const latency_histogram& other);
  // Those counted after `before`, an earlier copy; its most() is that of the whole time.
  latency_histogram since(const latency_histogram& before) const;
  // In seconds; 0 when nothing was counted. `share` in [0, 1].
  double percentile(double share) const;
  // The longest, in seconds, exactly.
  double most() const { return most_; }
  // The number of durations counted.
  std::uint64_t count() const { return count_; }

 private:
  std::array<std::uint64_t, 256> counts_{};
  std::uint64_t count_ = 0;
  double most_ = 0;
};

// Adds the time until its destruction to `total`.
class stopwatch {
 public:
  explicit stopwatch(double& total) : total_(total), start_(steady_clock::now()) {}
  ~stopwatch() { total_ += std::chrono::duration<double>(steady_clock::now() - start_).count(); }
  stopwatch(const stopwatch&) = delete;
  stopwatch& operator=(const stopwatch&) = delete;

 private:
  double& total_;
  steady_clock::time_point start_;
};

}  // namespace millrace
