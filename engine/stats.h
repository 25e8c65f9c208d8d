#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/clock.h"

namespace millrace {

// The work of one stage so far. Times are wall time on the spine, in seconds.
struct stage_stats {
  std::string name;           // "decode_jpeg"
  std::uint64_t items = 0;    // that it has given
  std::uint64_t bytes = 0;    // of payload in them
  double busy = 0;            // working, or waiting for its work in the pool
  double waiting_input = 0;   // for the stage before it
  double waiting_output = 0;  // for the next stage to ask
};

// Durations of single operations, counted in classes an eighth of a power of two wide: a percentile
// is right within 9 %.
class latency_histogram {
 public:
  // Counts one duration.
  void add(double seconds);
  // Counts all those of another one.
  void add(const latency_histogram& other);
  // In seconds; 0 when nothing was counted. `share` in [0, 1].
  double percentile(double share) const;
  // The longest, in seconds, exactly.
  double most() const { return most_; }
  // How many were counted.
  std::uint64_t count() const { return count_; }

 private:
  std::array<std::uint64_t, 256> counts_{};
  std::uint64_t count_ = 0;
  double most_ = 0;
};

// Totals of one run. A snapshot: copy it freely.
struct run_stats {
  std::vector<stage_stats> stages;  // in the order in which data passes
  std::uint64_t bytes_read = 0;     // from files and servers
  std::uint64_t requests = 0;       // files opened and HTTP requests made
  std::uint64_t retries = 0;        // transfers resumed or retried
  double seconds = 0;               // since the run began
  double spine_cpu = 0;             // CPU time of the I/O thread
  // Of the pool, which all runs of an engine share.
  int pool_threads = 0;
  int pool_used = 0;     // threads that take work at present
  double pool_busy = 0;  // wall time of its tasks, summed over the threads
  double pool_cpu = 0;   // CPU time of its threads
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
