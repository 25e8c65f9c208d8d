#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/base/result.h"

namespace millrace {

// A block device and the devices that it consists of.
struct block_device {
  std::string name;  // as in /sys/class/block: "sda", "md0", "dm-3"
  std::string kind;  // "disk", "partition", "raid6", "LVM", "crypt", "loop", "bcache", ...
  bool rotational = false;
  // The kernel's rotational flag means nothing on a disk that a hypervisor or a server emulates.
  bool virtual_disk = false;
  int spindles = 1;             // number that one large read keeps busy
  std::size_t chunk_bytes = 0;  // in a row on one spindle; 0 where there is only one
  int queue_requests = 0;       // nr_requests; 0: unknown
  std::string scheduler;        // "mq-deadline"; empty: none
  std::size_t read_ahead_bytes = 0;
  std::vector<block_device> below;
};

// The storage of a file.
struct storage {
  std::string file_system;  // "ext4", "nfs4", "fuse.sshfs"; empty: unknown
  std::string mount_point;
  std::vector<block_device> devices;  // none: a network, memory or a program answers
  std::string remark;                 // why nothing more is known, in words for the user

  bool rotational = false;  // a gate helps: real, turning disks
  int spindles = 1;
  std::size_t chunk_bytes = 0;
  std::string identity;  // equal for all storage on the same physical disks: "sda+sdb"
};

// Finds the storage of the file with `device` (stat's st_dev) and `path` (absolute). Reads only
// below `root`: <root>/sys and <root>/proc/self/mountinfo; "/" is this host. Never fails: `remark`
// says what could not be determined. Thread-safe.
//
// Follows partitions, md, device mapper (LVM, crypt), bcache, and loop devices to their files.
storage find_storage(const std::filesystem::path& root, dev_t device, const std::string& path);

// The same for a path on this host. Fails with the kind of the errno if the file cannot be
// examined.
result<storage> storage_of(const std::string& path);

// The bytes of one full stripe: a read of as many keeps every spindle busy. 0: one spindle.
inline std::size_t stripe_bytes(const storage& s) {
  return s.chunk_bytes * static_cast<std::size_t>(s.spindles);
}

}  // namespace millrace
