#pragma once

#include <atomic>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "io/disks/topology.h"
#include "pipeline/run/engine.h"
#include "tools/bench/measure.h"

namespace millrace {

struct disk_bench_options {
  std::vector<std::string> paths;  // files; folders stand for all files in them
  int streams = 0;                 // files read at once; 0: all, at most 8
  double seconds = 10;
  std::size_t random_bytes = 0;  // 0: files from their beginning to their end; else reads of so
                                 // many bytes, at random multiples of it
  std::stop_token stop = {};     // ends it early
  std::atomic<std::uint64_t>* read = nullptr;  // bytes so far; for progress, may be null
};

// The streams' results.
struct disk_bench_report : read_report {
  std::uint64_t files = 0;
  std::uint64_t file_bytes = 0;
  int streams = 0;
  int streams_served = 0;     // streams that read any bytes
  std::uint64_t depth = 0;    // chunks in flight: the most of each I/O thread, summed
  double cached_before = -1;  // share of the files' pages that was cached; -1: unknown
  std::vector<storage> devices;
  std::string io;  // "uring" or "pread"

  enum class kind { disk, page_cache, mixed, memory };
  // The fraction of the bytes that bypassed the page cache.
  double direct_share() const;
  // What the rate measures: a figure from the page cache says nothing about a disk.
  kind figure() const;
  // Its name: "disk", "page cache", "mixed", "memory".
  std::string_view figure_name() const;
  // The bottleneck, in words.
  std::string limit(int cpus) const;
};

// Reads through the code that training uses. Blocks for options.seconds. Throws `failure`.
disk_bench_report run_disk_bench(const engine_options& how, const disk_bench_options& what);

// All regular files below the folders of `paths`, and the files among them, sorted. Throws
// `failure` if a folder cannot be listed.
std::vector<std::string> files_below(const std::vector<std::string>& paths);

}  // namespace millrace
