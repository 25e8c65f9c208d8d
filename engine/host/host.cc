#include "engine/host/host.h"

#include <sched.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cmath>

#include "engine/base/units.h"
#include "engine/host/cgroup.h"

namespace millrace {

std::size_t allowed_memory_bytes() {
  struct sysinfo info{};
  sysinfo(&info);
  const auto total = static_cast<double>(info.totalram) * info.mem_unit;
  return static_cast<std::size_t>(std::min(total, limits_of_cgroups("/").memory_bytes));
}

std::size_t default_memory_bytes() {
  return std::min<std::size_t>(allowed_memory_bytes() / 4, 4_GiB);
}

int allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  const double quota = std::ceil(limits_of_cgroups("/").cpus);
  return std::max(static_cast<int>(std::min<double>(cpus, quota)), 1);
}

}  // namespace millrace
