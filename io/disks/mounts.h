#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace millrace {

// One line of /proc/self/mountinfo (proc(5)).
struct mount {
  dev_t device = 0;
  std::string point;
  std::string type;
  std::string source;
  std::string options;  // of the file system
};

std::vector<mount> read_mounts(const std::filesystem::path& mountinfo);
// The mount of `path`, among those of `device`, or among all if it is 0: the last of those with the
// longest mount point that `path` begins with.
std::optional<mount> mount_of(const std::vector<mount>& all, dev_t device, const std::string& path);

// The first line of a file of /proc or /sys; empty if it cannot be read.
std::string first_line(const std::filesystem::path& file);

}  // namespace millrace
