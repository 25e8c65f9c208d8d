#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/result.h"

namespace millrace {

// Operations on whole files and folders, by host_files(). All block; any thread. All except
// remove_tree() follow links.

// Whether something exists at the path, and the size of a plain file in bytes (nullopt: there is
// none). Throw `failure` (not_allowed, io_failed) if that cannot be determined.
bool is_there(const std::string& path);
std::optional<std::uint64_t> size_of_file(const std::string& path);
// Whether the path is known to be a folder.
bool is_folder(const std::string& path);
// Whether both name the same existing file or folder; nullopt if that cannot be determined.
std::optional<bool> is_same(const std::string& one, const std::string& other);

// Bytes of the largest list of names that is read whole.
inline constexpr std::size_t most_of_whole_file = std::size_t{1} << 30;
// For a file that may be as large as memory allows.
inline constexpr std::size_t any_size = std::numeric_limits<std::size_t>::max();
// All bytes of a file, or of a pipe or device up to its end. Fails with the kind by errno
// (not_found, not_allowed, io_failed), with too_large beyond `most_bytes`, and with no_memory.
result<std::string> read_whole_file(const std::string& path,
                                    std::size_t most_bytes = most_of_whole_file);
// Removes the byte order mark that some editors write at the start of a text file from its first
// line.
void drop_byte_order_mark(std::string& line);

// The names of the folders in a folder, in byte order. Fails with the kind by errno if it cannot be
// listed, or if an entry cannot be examined. A dangling link (to a disk that is not mounted) is not
// a folder; if `refused`, it fails with not_found, unless it is hidden.
enum class dangling_links { passed_over, refused };
result<std::vector<std::string>> folders_within(const std::string& folder, dangling_links how);

// Everything below a folder, in byte order, with path and stat(2): for a link that of its target,
// or the link's own if it is dangling or circular. Descends into folders, but not into links to
// folders. Fails with the kind by errno if an entry cannot be read.
struct visited {
  std::string path;
  struct stat info{};
  bool is_link = false;
};
result<void> visit_folder(const std::string& folder, const std::function<void(visited)>& visit);

// Creates a folder and its parents, and syncs the new names. Returns 0, also if it exists, or
// -errno.
int make_folders(const std::string& path);
// Removes a file, or a folder with everything in it. Returns 0, also if nothing is there, or
// -errno.
int remove_tree(const std::string& path);

}  // namespace millrace
