#pragma once

#include <filesystem>
#include <vector>

namespace millrace {

// The CPUs of each NUMA node that has any, by <root>/sys/devices/system/node; empty where the host
// does not tell. "/" is this host.
std::vector<std::vector<int>> numa_nodes(const std::filesystem::path& root);

// On a host of several nodes, keeps the calling thread on the CPUs of one of them, `index` modulo
// their number: the memory that it touches first is then local to it. Does nothing on one node, and
// where none of the node's CPUs is allowed or the host cannot tell.
void stay_on_a_node(int index) noexcept;

}  // namespace millrace
