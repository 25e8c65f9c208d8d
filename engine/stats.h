#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/async.h"

namespace millrace {

// What one stage has done so far. Times are wall time on the spine, in seconds.
struct stage_stats {
  std::string name;
  std::uint64_t items = 0;
  std::uint64_t bytes = 0;
  double busy = 0;            // working, or waiting for what it asked of the pool
  double waiting_input = 0;   // for the stage before it
  double waiting_output = 0;  // for the stage behind it to ask
};

// Totals of one run. A snapshot: copy it freely.
struct run_stats {
  std::vector<stage_stats> stages;  // in the order in which data passes
  std::uint64_t bytes_read = 0;     // from files and servers
  std::uint64_t requests = 0;       // files opened and HTTP requests made
  std::uint64_t retries = 0;        // transfers that were resumed or asked again
  double seconds = 0;
};

// Adds the time until its end to `total`.
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
