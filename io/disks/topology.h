#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/result.h"

namespace millrace {

// A block device and the devices it is made of.
struct block_device {
  std::string name;  // as in /sys/class/block: "sda", "md0", "dm-3"
  std::string kind;  // "disk", "partition", "raid6", "LVM", "crypt", "loop", "bcache", ...
  bool rotational = false;
  // The kernel's rotational flag means nothing on a disk that a hypervisor or a server makes up.
  bool virtual_disk = false;
  int spindles = 1;             // that one large read keeps busy
  std::size_t chunk_bytes = 0;  // in a row on one spindle; 0 where there is only one
  int queue_requests = 0;       // nr_requests; 0 unknown
  std::string scheduler;        // "mq-deadline"; empty where there is none
  std::size_t read_ahead_bytes = 0;
  std::vector<block_device> below;
};

// The storage of a file.
struct storage {
  std::string file_system;  // "ext4", "nfs4", "fuse.sshfs"; empty when it is unknown
  std::string mount_point;
  std::vector<block_device> devices;  // none: a network, memory, or a program answers
  std::string remark;                 // why nothing more is known, in words for the user

  bool rotational = false;  // a gate pays: real, turning disks
  int spindles = 1;
  std::size_t chunk_bytes = 0;
  std::string identity;  // the same for all that shares the physical disks: "sda+sdb"
};

// Finds the storage of the file with `device` (stat's st_dev), which `path` (absolute) names. Reads
// only below `root`: <root>/sys and <root>/proc/self/mountinfo; "/" is this host. Never fails:
// `remark` says what could not be found out. Thread-safe.
//
// Follows partitions, md, device mapper (LVM, crypt), bcache, and loop devices to their file.
storage find_storage(const std::filesystem::path& root, dev_t device, const std::string& path);

// The same for a path on this host. Fails with the kind by errno if the file cannot be looked at.
result<storage> storage_of(const std::string& path);

// Bytes at most that one read keeps together so that every spindle takes part: 0 for one spindle.
inline std::size_t stripe_bytes(const storage& s) {
  return s.chunk_bytes * static_cast<std::size_t>(s.spindles);
}

}  // namespace millrace
