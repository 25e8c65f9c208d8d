#include "engine/host/host.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "engine/host/cgroup.h"
#include "tests/support/temporary_folder.h"

namespace millrace {
namespace {

// A host whose files say what a test writes.
class fake_host {
 public:
  void write(const std::string& file, const std::string& text) const {
    const std::filesystem::path path = root() / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << '\n';
  }
  std::filesystem::path root() const { return folder_ / ""; }
  cgroup_limits limits() const { return limits_of_cgroups(root()); }

 private:
  testing::temporary_folder folder_;
};

TEST(Host, WithoutControlGroupsNothingLimits) {
  const fake_host host;
  EXPECT_EQ(host.limits().memory_bytes, cgroup_limits{}.memory_bytes);
  EXPECT_EQ(host.limits().cpus, cgroup_limits{}.cpus);
}

TEST(Host, TheGroupOfTheProcessAndThoseAboveItLimit) {
  const fake_host host;
  host.write("proc/self/cgroup", "0::/system.slice/slurmstepd.scope/job_7/step_0");
  const std::string job = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/";
  host.write(job + "memory.max", "2000000000");
  host.write(job + "step_0/memory.max", "max");
  host.write(job + "step_0/cpu.max", "350000 100000");
  host.write("sys/fs/cgroup/system.slice/cpu.max", "max 100000");
  EXPECT_EQ(host.limits().memory_bytes, 2e9);
  EXPECT_EQ(host.limits().cpus, 3.5);
}

TEST(Host, TheRootLimitsAContainerThatSeesNoMore) {
  for (const char* path : {"/", "/docker/0123", "/../../other"}) {
    const fake_host host;
    host.write("proc/self/cgroup", std::string("0::") + path);
    host.write("sys/fs/cgroup/memory.max", "1000000");
    host.write("sys/fs/cgroup/other/memory.max", "1000");  // of others, under the same name
    EXPECT_EQ(host.limits().memory_bytes, 1e6) << path;
  }
}

TEST(Host, VersionOneHasAFolderForEachController) {
  const fake_host host;
  host.write("proc/self/cgroup", "9:name=systemd:/\n4:memory:/a/b\n3:cpu,cpuacct:/a\n0::/");
  host.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  host.write("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "3000");
  host.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1");
  host.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000");
  host.write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "200000");
  host.write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000");
  EXPECT_EQ(host.limits().memory_bytes, 3000);
  EXPECT_EQ(host.limits().cpus, 2);
}

TEST(Host, AllowsAtLeastOneCpuAndSomeMemory) {
  EXPECT_GE(allowed_cpus(), 1);
  EXPECT_GT(default_memory_bytes(), 0U);
  EXPECT_LE(default_memory_bytes(), allowed_memory_bytes());
}

}  // namespace
}  // namespace millrace
