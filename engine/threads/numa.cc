#include "engine/threads/numa.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "engine/base/words.h"
#include "engine/files/file_system.h"

namespace millrace {

namespace fs = std::filesystem;

std::vector<std::vector<int>> numa_nodes(const fs::path& root) {
  std::vector<std::vector<int>> nodes;
  const fs::path all = root / "sys/devices/system/node";
  std::vector<std::string> names;
  // Not a directory_iterator, which ends the program if there is no memory.
  if (host_files().list(all, names) != 0) return nodes;
  std::ranges::sort(names);
  for (const std::string& name : names) {
    if (!name.starts_with("node") || name.size() == 4) continue;
    std::ifstream file(all / name / "cpulist");  // "0-3,8-11"
    std::string list;
    std::getline(file, list);
    std::vector<int> cpus;
    for (const std::string& range : split(list, ',')) {
      int first = -1;
      int last = -1;
      char dash = 0;
      std::istringstream numbers(range);
      if (!(numbers >> first)) continue;
      if (!(numbers >> dash >> last)) last = first;
      for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    }
    if (!cpus.empty()) nodes.push_back(std::move(cpus));  // a node may have memory alone
  }
  return nodes;
}

void stay_on_a_node(int index) noexcept try {
  const auto nodes = numa_nodes("/");
  if (nodes.size() < 2) return;
  cpu_set_t allowed;
  cpu_set_t wanted;
  CPU_ZERO(&wanted);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  for (const int cpu : nodes[static_cast<std::size_t>(index) % nodes.size()]) {
    if (cpu < CPU_SETSIZE && CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &wanted);
  }
  if (CPU_COUNT(&wanted) > 0) sched_setaffinity(0, sizeof wanted, &wanted);
} catch (const std::exception&) {
  return;  // no memory, or /sys cannot be read: any node will do
}

}  // namespace millrace
