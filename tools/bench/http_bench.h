#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "pipeline/run/engine.h"

namespace millrace {

struct http_bench_options {
  std::vector<std::string> urls;
  int connections = 8;  // objects read at once
  double seconds = 10;
  bool once = false;            // every object once, however long that takes
  std::size_t range_bytes = 0;  // 0: whole objects; else consecutive ranges of so many bytes
  std::atomic<std::uint64_t>* read = nullptr;  // bytes so far; for progress, may be null
};

// The readers' results. Rates in 10^6 bytes per second.
struct http_bench_report {
  int connections = 0;
  std::uint64_t bytes = 0;
  std::uint64_t objects = 0;  // or ranges, read completely
  double seconds = 0;
  double cpu_seconds = 0;
  std::vector<double> rate_over_time;  // one for each `interval_s`
  double interval_s = 0.1;
  std::vector<double> rate_of_connection;  // sorted
  source_counters counters;
  std::size_t budget_bytes = 0;
  double stalled_s = 0;  // of all connections: waits for servers, ended by a deadline
  bool interrupted = false;

  double mb_per_s() const { return seconds > 0 ? static_cast<double>(bytes) / 1e6 / seconds : 0; }
  // Per 1e9 bytes; nullopt if nothing was read.
  std::optional<double> cpu_s_per_gb() const {
    if (bytes == 0) return std::nullopt;
    return 1e9 * cpu_seconds / static_cast<double>(bytes);
  }
  // The bottleneck, in words.
  std::string limit(int cpus) const;
};

// Reads through the code that training uses. Blocks for options.seconds, or until all is read;
// ends early when `interrupted` becomes true. Throws `failure`.
http_bench_report run_http_bench(const engine_options& how, const http_bench_options& what,
                                 const std::atomic<bool>& interrupted);

}  // namespace millrace
