#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "io/disks/topology.h"
#include "pipeline/run/engine.h"

namespace millrace {

struct disk_bench_options {
  std::vector<std::string> paths;  // files; folders stand for all files in them
  int streams = 0;                 // files read at once; 0: all, at most 8
  double seconds = 10;
  std::size_t random_bytes = 0;  // 0: files from their beginning to their end; else reads of so
                                 // many bytes, at random multiples of it
  std::atomic<std::uint64_t>* read = nullptr;  // bytes so far; for progress, may be null
};

// The readers' results. Rates in 10^6 bytes per second.
struct disk_bench_report {
  std::uint64_t files = 0;
  std::uint64_t file_bytes = 0;
  int streams = 0;
  int streams_served = 0;  // streams that read any bytes
  std::uint64_t bytes = 0;
  double seconds = 0;
  double cpu_seconds = 0;
  std::vector<double> rate_over_time;  // one for each `interval_s`
  double interval_s = 0.1;
  source_counters counters;   // of all streams
  std::uint64_t depth = 0;    // chunks in flight: the most of each I/O thread, summed
  double cached_before = -1;  // share of the files' pages that was cached; -1: unknown
  std::vector<storage> devices;
  std::string io;  // "uring" or "pread"
  bool interrupted = false;

  enum class kind { disk, page_cache, mixed, memory };
  // The fraction of the bytes that bypassed the page cache.
  double direct_share() const;
  // What the rate measures: a figure from the page cache says nothing about a disk.
  kind figure() const;
  // Its name: "disk", "page cache", "mixed", "memory".
  std::string_view figure_name() const;
  // The bottleneck, in words.
  std::string limit(int cpus) const;
  double mb_per_s() const { return seconds > 0 ? static_cast<double>(bytes) / 1e6 / seconds : 0; }
  // Per 1e9 bytes; nullopt if nothing was read.
  std::optional<double> cpu_s_per_gb() const {
    if (bytes == 0) return std::nullopt;
    return 1e9 * cpu_seconds / static_cast<double>(bytes);
  }
};

// Reads through the code that training uses. Blocks for options.seconds; ends early when
// `interrupted` becomes true. Throws `failure`.
disk_bench_report run_disk_bench(const engine_options& how, const disk_bench_options& what,
                                 const std::atomic<bool>& interrupted);

// All regular files below the folders of `paths`, and the files among them, sorted. Throws
// `failure` if a folder cannot be listed.
std::vector<std::string> files_below(const std::vector<std::string>& paths);

}  // namespace millrace
