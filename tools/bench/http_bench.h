#pragma once

#include <atomic>
#include <stop_token>
#include <string>
#include <vector>

#include "pipeline/run/engine.h"
#include "tools/bench/measure.h"

namespace millrace {

struct http_bench_options {
  std::vector<std::string> urls;
  int connections = 8;  // objects read at once
  double seconds = 10;
  bool once = false;            // every object once, however long that takes
  std::size_t range_bytes = 0;  // 0: whole objects; else consecutive ranges of so many bytes
  std::stop_token stop = {};    // ends it early
  std::atomic<std::uint64_t>* read = nullptr;  // bytes so far; for progress, may be null
};

// The readers' results.
struct http_bench_report : read_report {
  int connections = 0;
  std::uint64_t objects = 0;               // or ranges, read completely
  std::vector<double> rate_of_connection;  // sorted
  std::size_t budget_bytes = 0;
  double stalled_s = 0;  // of all connections: waits for servers, ended by a deadline

  // The bottleneck, in words.
  std::string limit(int cpus) const;
};

// Reads through the code that training uses. Blocks for options.seconds, or until all is read.
// Throws `failure`.
http_bench_report run_http_bench(const engine_options& how, const http_bench_options& what);

}  // namespace millrace
