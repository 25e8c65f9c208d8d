#pragma once

#include <filesystem>
#include <limits>

namespace millrace {

// What the control group of this process and those above it allow.
struct cgroup_limits {
  double memory_bytes = std::numeric_limits<double>::infinity();
  double cpus = std::numeric_limits<double>::infinity();
};

// Read from <root>/proc/self/cgroup and <root>/sys/fs/cgroup, versions 1 and 2; what is not there
// does not limit. "/" is this host.
cgroup_limits limits_of_cgroups(const std::filesystem::path& root);

}  // namespace millrace
