#include "bench/rotational/mirror.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

namespace millrace::rotational {

namespace fs = std::filesystem;

std::uint64_t mirror::add(const std::string& path, const std::string& name, std::uint64_t parent) {
  const std::uint64_t inode = entries_.size() + 1;
  entry made{.name = name, .parent = parent};
  const auto fail = [&] {
    throw fs::filesystem_error("cannot mirror", path,
                               std::error_code(errno, std::generic_category()));
  };
  if (stat(path.c_str(), &made.info) != 0) fail();
  made.info.st_ino = inode;
  if (S_ISREG(made.info.st_mode)) {
    made.fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (made.fd < 0) fail();
  }
  entries_.push_back(std::move(made));
  if (parent > 0) entries_[parent - 1].children[name] = inode;
  return inode;
}

mirror::mirror(const std::string& folder, std::uint64_t span, std::uint64_t unit) {
  std::vector<std::pair<std::string, std::uint64_t>> folders{{folder, add(folder, "", 0)}};
  std::vector<std::pair<std::string, std::uint64_t>> files;  // by path
  while (!folders.empty()) {
    const auto [path, inode] = folders.back();
    folders.pop_back();
    for (const auto& item : fs::directory_iterator(path)) {
      if (!item.is_directory() && !item.is_regular_file()) continue;
      const std::uint64_t child = add(item.path(), item.path().filename(), inode);
      (item.is_directory() ? folders : files).emplace_back(item.path(), child);
    }
  }
  std::ranges::sort(files);
  for (std::size_t i = 0; i < files.size(); ++i) {
    const double place = static_cast<double>(span) * static_cast<double>(i) /
                         static_cast<double>(std::max<std::size_t>(files.size(), 1));
    entries_[files[i].second - 1].place = static_cast<std::uint64_t>(place) / unit * unit;
  }
}

mirror::~mirror() {
  for (const entry& e : entries_) {
    if (e.fd >= 0) close(e.fd);
  }
}

}  // namespace millrace::rotational
