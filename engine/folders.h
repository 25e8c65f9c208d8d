#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/result.h"

namespace millrace {

// Whole files and folders, by host_files(). All block; any thread. All but remove_tree() follow
// links.

// Whether something exists at the path, and the size of a file in bytes; nullopt where there is no
// plain file. Throw `failure` (not_allowed, io_failed) where that cannot be found out.
bool is_there(const std::string& path);
std::optional<std::uint64_t> size_of_file(const std::string& path);
// Whether the path is known to be a folder.
bool is_folder(const std::string& path);
// Whether both name the same existing file or folder; nullopt where that cannot be found out.
std::optional<bool> is_same(const std::string& one, const std::string& other);

// All bytes of a file, or of a pipe up to its end. Fails with the kind by errno (not_found,
// not_allowed, io_failed).
result<std::string> read_whole_file(const std::string& path);
// From the first line of a text file, as some editors write it.
void drop_byte_order_mark(std::string& line);

// The names of the folders in a folder, in byte order. Fails with the kind by errno where it cannot
// be listed, and where it cannot be seen whether one of its entries is a folder. A link to nothing
// (of a disk that is not mounted) is no folder; where `refused`, it fails with not_found, unless it
// is hidden.
enum class dangling_links { passed_over, refused };
result<std::vector<std::string>> folders_within(const std::string& folder, dangling_links how);

// Everything below a folder, in byte order: its path and its stat(2), which for a link is that of
// its target, or the link's own where it has none, or leads in a circle. Descends into folders, but
// not into links to folders. Fails with the kind by errno where an entry cannot be read.
struct visited {
  std::string path;
  struct stat info{};
  bool is_link = false;
};
result<void> visit_folder(const std::string& folder, const std::function<void(visited)>& visit);

// Makes a folder, and those that it is in; the new names are on the disk when it returns. 0, also
// where it is there, or -errno.
int make_folders(const std::string& path);
// Removes a file, or a folder and all that is in it. 0, also where nothing is there, or -errno.
int remove_tree(const std::string& path);

}  // namespace millrace
