#pragma once

#include <cstddef>

namespace millrace {

// The host's memory, or what its control groups allow if that is less.
std::size_t allowed_memory_bytes();
// A quarter of that, at most 4 GiB.
std::size_t default_memory_bytes();
// The number of CPUs that affinity and the control groups' quotas allow, at least 1.
int allowed_cpus();

}  // namespace millrace
