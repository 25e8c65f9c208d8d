#pragma once

#include <filesystem>
#include <vector>

namespace millrace {

// The CPUs of each NUMA node that has any, from <root>/sys/devices/system/node; empty if the host
// does not say. "/" is this host.
std::vector<std::vector<int>> numa_nodes(const std::filesystem::path& root);

// On a host with several nodes, pins the calling thread to the CPUs of node `index` modulo their
// number: memory that it touches first is then local to it. Does nothing with one node, or if none
// of the node's CPUs is allowed or known.
void stay_on_a_node(int index) noexcept;

}  // namespace millrace
