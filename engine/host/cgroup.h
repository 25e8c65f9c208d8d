#pragma once

#include <filesystem>
#include <limits>

namespace millrace {

// The limits that the control group of this process and those above it set.
struct cgroup_limits {
  double memory_bytes = std::numeric_limits<double>::infinity();
  double cpus = std::numeric_limits<double>::infinity();
};

// Read from <root>/proc/self/cgroup and <root>/sys/fs/cgroup, versions 1 and 2; what is not there
// does not limit. "/" is this host.
cgroup_limits limits_of_cgroups(const std::filesystem::path& root);

}  // namespace millrace
