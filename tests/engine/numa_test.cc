#include "engine/threads/numa.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temporary_folder.h"

namespace millrace {
namespace {

TEST(Numa, ReadsTheCpusOfEachNode) {
  const testing::temporary_folder folder;
  const std::filesystem::path root = folder / "";
  const auto node = [&](const std::string& name, const std::string& cpus) {
    std::filesystem::create_directories(root / "sys/devices/system/node" / name);
    std::ofstream(root / "sys/devices/system/node" / name / "cpulist") << cpus << '\n';
  };
  EXPECT_TRUE(numa_nodes(root).empty());
  node("node0", "0-2,8");
  node("node1", "3-5,9-10");
  node("node2", "");  // memory alone
  const std::vector<std::vector<int>> expected{{0, 1, 2, 8}, {3, 4, 5, 9, 10}};
  EXPECT_EQ(numa_nodes(root), expected);
}

}  // namespace
}  // namespace millrace
