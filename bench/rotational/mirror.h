#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace millrace::rotational {

// The files of a folder and their places on the modelled array. Read once.
class mirror {
 public:
  struct entry {
    std::string name;
    std::uint64_t parent = 0;
    struct stat info{};
    int fd = -1;              // of a file
    std::uint64_t place = 0;  // of its first byte, in the array's own addresses
    std::map<std::string, std::uint64_t> children;
  };

  // Spreads the files evenly over `span` bytes of the array, each from a multiple of `unit` on, in
  // the order of their names. Throws std::filesystem::filesystem_error.
  mirror(const std::string& folder, std::uint64_t span, std::uint64_t unit);
  ~mirror();
  mirror(const mirror&) = delete;
  mirror& operator=(const mirror&) = delete;

  // Inode numbers count from 1, the root.
  bool has(std::uint64_t inode) const { return inode >= 1 && inode <= entries_.size(); }
  const entry& at(std::uint64_t inode) const { return entries_.at(inode - 1); }

 private:
  std::uint64_t add(const std::string& path, const std::string& name, std::uint64_t parent);
  std::vector<entry> entries_;
};

}  // namespace millrace::rotational
