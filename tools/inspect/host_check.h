#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/disks/topology.h"

namespace millrace {

struct engine_options;

// Storage that runs may read from.
struct host_storage {
  storage on;
  std::string reading;  // how its files are read, and why, in words
};

// The limits that a host sets a run with some options.
struct host_facts {
  std::optional<std::string> uring_refused;    // why; nullopt: io_uring works
  std::optional<std::uint64_t> memlock_bytes;  // nullopt: unlimited
  std::uint64_t open_files = 0;                // at once
  int cpus = 0;                                // that affinity and the cgroup allow
  int cpu_threads = 0;                         // that decode
  std::size_t memory_budget_bytes = 0;
  std::string ca_certificates;    // the file that has them; empty: none was found
  std::vector<std::string> gpus;  // their models
  std::string direct;             // when reads bypass the page cache, in words
  std::vector<host_storage> storage;
  std::vector<std::string> in_the_way;  // what slows reads down, and what to do about it
};

// Looks at this host, and at the storage of `paths`, each once; if there are none, at everything
// that is mounted from a block device. Throws `failure` for a path that cannot be looked at.
host_facts examine_host(const engine_options& options, const std::vector<std::string>& paths);

}  // namespace millrace
