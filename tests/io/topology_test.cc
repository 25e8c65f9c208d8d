#include "io/disks/topology.h"

#include <gtest/gtest.h>
#include <sys/sysmacros.h>

#include <fstream>

#include "tests/support/temporary_folder.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

// A sysfs and a mountinfo as the kernel would show them, built file by file.
class Topology : public ::testing::Test {
 protected:
  void write(const fs::path& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file, std::ios::app) << text << '\n';
  }
  void link(const fs::path& from, const fs::path& to) {
    fs::create_directories((root_ / from).parent_path());
    fs::create_directory_symlink(root_ / to, root_ / from);
  }
  // A whole device, with its queue and its names.
  fs::path device(const std::string& name, const std::string& number, bool rotational,
                  const fs::path& bus = "devices/pci0/ata1/block") {
    const fs::path folder = fs::path("sys") / bus / name;
    write(folder / "queue/rotational", rotational ? "1" : "0");
    write(folder / "queue/scheduler", "none [mq-deadline] kyber");
    write(folder / "queue/nr_requests", "64");
    write(folder / "queue/read_ahead_kb", "128");
    link("sys/dev/block/" + number, folder);
    link("sys/class/block/" + name, folder);
    return folder;
  }
  fs::path virtual_device(const std::string& name, const std::string& number) {
    return device(name, number, false, "devices/virtual/block");
  }
  fs::path partition(const fs::path& disk, int index, const std::string& number) {
    const std::string name = disk.filename().string() + std::to_string(index);
    write(disk / name / "partition", std::to_string(index));
    link("sys/dev/block/" + number, disk / name);
    link("sys/class/block/" + name, disk / name);
    return disk / name;
  }
  void member(const fs::path& array, const fs::path& of) {
    link(array / "slaves" / of.filename(), of);
  }
  fs::path raid(const std::string& name, const std::string& number, const std::string& level,
                int disks) {
    const fs::path array = virtual_device(name, number);
    write(array / "md/level", level);
    write(array / "md/chunk_size", "524288");
    write(array / "md/raid_disks", std::to_string(disks));
    for (int i = 0; i < disks; ++i) {
      const std::string disk = std::string("sd") + static_cast<char>('a' + i);
      const auto whole = device(disk, "8:" + std::to_string(16 * i), true);
      member(array, partition(whole, 1, "8:" + std::to_string(16 * i + 1)));
    }
    return array;
  }
  void mounted(const std::string& number, const std::string& point, const std::string& type,
               const std::string& source, const std::string& options = "rw") {
    write("proc/self/mountinfo", "30 1 " + number + " / " + point + " rw,relatime shared:1 - " +
                                     type + " " + source + " " + options);
  }
  storage find(int major_number, int minor_number, const std::string& path) {
    return find_storage(root_, makedev(major_number, minor_number), path);
  }

  testing::temporary_folder folder_;
  fs::path root_ = fs::path(folder_ / "");
};

TEST_F(Topology, PartitionOfADisk) {
  partition(device("sda", "8:0", true), 1, "8:1");
  mounted("8:1", "/data", "ext4", "/dev/sda1");
  const storage s = find(8, 1, "/data/x.tar");
  EXPECT_TRUE(s.rotational);
  EXPECT_EQ(s.spindles, 1);
  EXPECT_EQ(s.identity, "sda");
  EXPECT_EQ(s.file_system, "ext4");
  ASSERT_EQ(s.devices.size(), 1U);
  EXPECT_EQ(s.devices[0].kind, "partition");
  EXPECT_EQ(s.devices[0].scheduler, "mq-deadline");
  EXPECT_EQ(s.devices[0].queue_requests, 64);
  EXPECT_EQ(s.devices[0].read_ahead_bytes, 128U * 1024);
}

TEST_F(Topology, NvmeIsNotRotational) {
  device("nvme0n1", "259:0", false);
  mounted("259:0", "/", "xfs", "/dev/nvme0n1");
  EXPECT_FALSE(find(259, 0, "/x.tar").rotational);
}

TEST_F(Topology, VirtioFlagIsNotBelieved) {
  device("vda", "254:0", true);
  mounted("254:0", "/", "ext4", "/dev/vda");
  const storage s = find(254, 0, "/x.tar");
  EXPECT_FALSE(s.rotational);
  EXPECT_NE(s.remark.find("virtual disk"), std::string::npos);
}

struct raid_case {
  const char* level;
  int disks;
  int spindles;
};

class Raid : public Topology, public ::testing::WithParamInterface<raid_case> {};

TEST_P(Raid, CountsTheSpindlesOfALargeRead) {
  raid("md0", "9:0", GetParam().level, GetParam().disks);
  mounted("9:0", "/data", "ext4", "/dev/md0");
  const storage s = find(9, 0, "/data/x.tar");
  EXPECT_TRUE(s.rotational);
  EXPECT_EQ(s.spindles, GetParam().spindles);
  EXPECT_EQ(s.devices[0].kind, GetParam().level);
  EXPECT_EQ(s.chunk_bytes, GetParam().spindles > 1 ? 524288U : 0U);
}

INSTANTIATE_TEST_SUITE_P(Levels, Raid,
                         ::testing::Values(raid_case{"raid0", 4, 4}, raid_case{"raid1", 2, 1},
                                           raid_case{"raid5", 4, 3}, raid_case{"raid6", 8, 6},
                                           raid_case{"raid10", 4, 2}, raid_case{"linear", 3, 1}),
                         [](const auto& c) { return std::string(c.param.level); });

TEST_F(Topology, ADegradedArrayKeepsItsShape) {
  const auto array = raid("md0", "9:0", "raid6", 8);
  fs::remove(root_ / array / "slaves/sdh1");
  mounted("9:0", "/data", "ext4", "/dev/md0");
  EXPECT_EQ(find(9, 0, "/data/x").spindles, 6);
}

TEST_F(Topology, LvmOnRaidIsTheRaid) {
  const auto array = raid("md0", "9:0", "raid0", 4);
  const auto volume = virtual_device("dm-0", "253:0");
  write(volume / "dm/uuid", "LVM-abc");
  write(volume / "dm/name", "vg-shards");
  member(volume, array);
  mounted("253:0", "/data", "ext4", "/dev/mapper/vg-shards");
  const storage s = find(253, 0, "/data/x.tar");
  EXPECT_EQ(s.spindles, 4);
  EXPECT_EQ(s.chunk_bytes, 524288U);
  EXPECT_EQ(s.identity, "sda+sdb+sdc+sdd");
  EXPECT_EQ(s.devices[0].kind, "LVM");
}

TEST_F(Topology, StripedLvmShowsInItsIoHints) {
  const auto volume = virtual_device("dm-0", "253:0");
  write(volume / "dm/uuid", "LVM-abc");
  write(volume / "queue/minimum_io_size", "65536");
  write(volume / "queue/optimal_io_size", "131072");
  member(volume, device("sda", "8:0", true));
  member(volume, device("sdb", "8:16", true));
  const storage s = find(253, 0, "/data/x.tar");
  EXPECT_EQ(s.spindles, 2);
  EXPECT_EQ(s.chunk_bytes, 65536U);
}

TEST_F(Topology, CryptAndBcacheAreWhatTheyLieOn) {
  const auto crypt = virtual_device("dm-1", "253:1");
  write(crypt / "dm/uuid", "CRYPT-LUKS2-abc");
  member(crypt, device("sda", "8:0", true));
  EXPECT_EQ(find(253, 1, "/x").devices[0].kind, "crypt");
  EXPECT_EQ(find(253, 1, "/x").identity, "sda");
  const auto cached = virtual_device("bcache0", "252:0");
  member(cached, device("sdb", "8:16", true));
  EXPECT_TRUE(find(252, 0, "/x").rotational);
  EXPECT_EQ(find(252, 0, "/x").identity, "sdb");
}

TEST_F(Topology, LoopDeviceIsTheDiskOfItsFile) {
  partition(device("sda", "8:0", true), 1, "8:1");
  mounted("8:1", "/", "ext4", "/dev/sda1");
  const auto loop = virtual_device("loop3", "7:3");
  write(loop / "loop/backing_file", "/images/shards.img");
  mounted("7:3", "/mnt", "ext4", "/dev/loop3");
  const storage s = find(7, 3, "/mnt/x.tar");
  EXPECT_EQ(s.identity, "sda");
  EXPECT_TRUE(s.rotational);
}

TEST_F(Topology, ALoopOnItselfEnds) {
  const auto loop = virtual_device("loop3", "7:3");
  write(loop / "loop/backing_file", "/mnt/shards.img");
  mounted("7:3", "/mnt", "ext4", "/dev/loop3");
  EXPECT_EQ(find(7, 3, "/mnt/x.tar").identity, "loop3");
}

TEST_F(Topology, AnonymousDevicesAreFoundByTheirMount) {
  partition(device("sda", "8:0", true), 1, "8:1");
  mounted("0:42", "/with\\040space", "btrfs", "/dev/sda1");  // as the kernel writes a space
  const storage s = find(0, 42, "/with space/x.tar");
  EXPECT_EQ(s.identity, "sda");
  EXPECT_EQ(s.file_system, "btrfs");
  mounted("8:1", "/", "ext4", "/dev/sda1");
  mounted("0:50", "/merged", "overlay", "overlay", "rw,lowerdir=/l,upperdir=/u,workdir=/w");
  EXPECT_EQ(find(0, 50, "/merged/x.tar").identity, "sda");
}

TEST_F(Topology, WhatHasNoDeviceIsNamed) {
  mounted("0:60", "/nfs", "nfs4", "server:/export");
  mounted("0:61", "/fuse", "fuse.sshfs", "host:");
  mounted("0:62", "/shm", "tmpfs", "tmpfs");
  mounted("0:63", "/host", "9p", "share");
  EXPECT_NE(find(0, 60, "/nfs/x").remark.find("network"), std::string::npos);
  EXPECT_NE(find(0, 61, "/fuse/x").remark.find("FUSE"), std::string::npos);
  EXPECT_NE(find(0, 62, "/shm/x").remark.find("memory"), std::string::npos);
  EXPECT_NE(find(0, 63, "/host/x").remark.find("host"), std::string::npos);
  const storage unknown = find(99, 1, "/nowhere");
  EXPECT_TRUE(unknown.devices.empty());
  EXPECT_FALSE(unknown.rotational);
  EXPECT_EQ(unknown.identity, "dev-99-1");
}

}  // namespace
}  // namespace millrace
