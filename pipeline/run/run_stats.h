#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/source_counters.h"

namespace millrace {

// The work of one stage so far. Times are wall time on the spine, in seconds.
struct stage_stats {
  // "decode_jpeg". Stages that are read as one have one name: untar() | group_by_key() is
  // "read_samples"; "lanes" interleaves the lanes.
  std::string name;
  std::uint64_t items = 0;    // that it has given
  std::uint64_t bytes = 0;    // of payload in them
  double busy = 0;            // working, or waiting for its work in the pool
  double waiting_input = 0;   // for the stage before it
  double waiting_output = 0;  // for the next stage to ask

  // The work after `before`, an earlier snapshot of the same stage.
  stage_stats since(const stage_stats& before) const;
};

// Totals of one run. A snapshot: copy it freely.
struct run_stats {
  std::vector<stage_stats> stages;  // in the order in which data passes
  source_counters sources;          // of the files and servers that it reads
  double seconds = 0;               // since the run began
  double spine_cpu = 0;             // CPU time of the I/O thread since the first item was asked for
  // Threads of the pool, which all runs of an engine share.
  int pool_threads = 0;
  int pool_used = 0;     // threads that take work at present
  double pool_busy = 0;  // wall time of its tasks, summed over the threads
  double pool_cpu = 0;   // CPU time of its threads

  // Returns the figures after `before`, an earlier snapshot of the same run. pool_threads and
  // pool_used are the current ones; source_counters::since() names the figures of the whole time.
  run_stats since(const run_stats& before) const;
  // Adds the figures of a later run of the same plan, on the same engine. Those of the pool are the
  // later ones, since they count from when the engine began.
  void add(const run_stats& later);
};

}  // namespace millrace
