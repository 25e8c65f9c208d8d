#include "engine/host/cgroup.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/words.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

// The word at `index` of a file as a number; none: "max", or no such word.
std::optional<double> number_in(const fs::path& file, int index = 0) {
  std::ifstream in(file);
  std::string word;
  for (int i = 0; i <= index; ++i) {
    if (!(in >> word)) return std::nullopt;
  }
  if (word == "max") return std::nullopt;
  return std::strtod(word.c_str(), nullptr);
}

void limit_memory(cgroup_limits& limits, const fs::path& file) {
  if (const auto bytes = number_in(file))
    limits.memory_bytes = std::min(limits.memory_bytes, *bytes);
}

// A quota of version 1 that is -1 does not limit.
void limit_cpus(cgroup_limits& limits, std::optional<double> quota, std::optional<double> period) {
  if (quota && period && *quota > 0 && *period > 0) {
    limits.cpus = std::min(limits.cpus, *quota / *period);
  }
}

// Calls `read` with the folders of a group and of those above it. In a container the path may be
// that of the host, of which only the root is visible: what is not there is passed over.
template <typename F>
void for_group_and_above(const fs::path& controller, std::string_view path, F read) {
  fs::path group = fs::path(path).relative_path();
  if (std::ranges::find(group, fs::path("..")) != group.end()) group.clear();  // not in this view
  for (; !group.empty(); group = group.parent_path()) read(controller / group);
  read(controller);
}

}  // namespace

cgroup_limits limits_of_cgroups(const fs::path& root) {
  cgroup_limits limits;
  const fs::path all = root / "sys/fs/cgroup";
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:memory,hugetlb:/path", "0::/path"
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string_view path = std::string_view(line).substr(second + 1);
    if (controllers.empty()) {
      for_group_and_above(all, path, [&](const fs::path& group) {
        limit_memory(limits, group / "memory.max");
        limit_cpus(limits, number_in(group / "cpu.max"), number_in(group / "cpu.max", 1));
      });
    }
    for (const std::string& controller : split(controllers, ',')) {
      if (controller == "memory") {
        for_group_and_above(all / controllers, path, [&](const fs::path& group) {
          limit_memory(limits, group / "memory.limit_in_bytes");
        });
      } else if (controller == "cpu") {
        for_group_and_above(all / controllers, path, [&](const fs::path& group) {
          limit_cpus(limits, number_in(group / "cpu.cfs_quota_us"),
                     number_in(group / "cpu.cfs_period_us"));
        });
      }
    }
  }
  return limits;
}

}  // namespace millrace
