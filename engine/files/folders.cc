#include "engine/files/folders.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <new>
#include <span>
#include <stdexcept>
#include <vector>

#include "engine/base/error.h"
#include "engine/files/file_system.h"

namespace millrace {
namespace {

constexpr std::size_t piece_bytes = std::size_t{64} << 10;

// Throws if it cannot be determined whether there is such a file.
std::optional<struct stat> status_of(const std::string& path) {
  struct stat s{};
  const int code = host_files().stat(path, s);
  if (code == 0) return s;
  if (code == -ENOENT || code == -ENOTDIR || code == -ENAMETOOLONG) return std::nullopt;
  throw failure(error(kind_of(-code), "cannot examine the file").at(path).cause(-code));
}

error cannot_read(const std::string& path, int why) {
  return error(kind_of(why), "cannot read the file").at(path).cause(why);
}

error unseen(const std::string& path, int code) {
  return error(kind_of(-code), "cannot list the folder").at(path).cause(-code);
}

}  // namespace

bool is_there(const std::string& path) {
  return status_of(path).has_value();
}

std::optional<std::uint64_t> size_of_file(const std::string& path) {
  const auto s = status_of(path);
  if (!s || !S_ISREG(s->st_mode)) return std::nullopt;
  return static_cast<std::uint64_t>(s->st_size);
}

bool is_folder(const std::string& path) {
  struct stat s{};
  return host_files().stat(path, s) == 0 && S_ISDIR(s.st_mode);
}

std::optional<bool> is_same(const std::string& one, const std::string& other) {
  struct stat a{};
  struct stat b{};
  for (const int code : {host_files().stat(one, a), host_files().stat(other, b)}) {
    if (code == -ENOENT || code == -ENOTDIR) return false;
    if (code != 0) return std::nullopt;
  }
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

namespace {

result<std::string> read_to_end(const held_file& file, const std::string& path,
                                std::size_t most_bytes) {
  struct stat s{};
  if (const int why = host_files().stat(file.fd(), s); why != 0) return cannot_read(path, -why);
  if (S_ISDIR(s.st_mode)) return cannot_read(path, EISDIR);
  const bool is_file = S_ISREG(s.st_mode);
  const auto too_large = [&] {
    return error(errc::too_large,
                 fmt::format("more than {} bytes, too many to be read whole", most_bytes))
        .at(path)
        .hint("check that it is the file that you mean");
  };
  if (is_file && static_cast<std::uint64_t>(s.st_size) > most_bytes) return too_large();
  std::string text;
  // One byte more than the file has, to see that it ends there.
  std::size_t room = is_file ? static_cast<std::size_t>(s.st_size) + 1 : piece_bytes;
  for (;;) {
    const std::size_t had = text.size();
    if (had > most_bytes) return too_large();
    text.resize(had + room);
    const iovec rest{text.data() + had, room};
    const ssize_t n = host_files().read(file.fd(), std::span(&rest, 1),
                                        is_file ? had : file_system::own_position);
    text.resize(had + static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
    if (n == 0) return text;
    if (n < 0 && n != -EINTR && n != -EAGAIN) return cannot_read(path, static_cast<int>(-n));
    room = piece_bytes;
  }
}

}  // namespace

result<std::string> read_whole_file(const std::string& path, std::size_t most_bytes) {
  const held_file file(host_files().open(path, O_RDONLY));
  if (!file) return cannot_read(path, -file.fd());
  try {
    return read_to_end(file, path, most_bytes);
  } catch (const std::bad_alloc&) {
    return out_of_memory().at(path);
  } catch (const std::length_error&) {  // of a string: a sparse file of all the bytes there can be
    return out_of_memory().at(path);
  }
}

void drop_byte_order_mark(std::string& line) {
  if (line.starts_with("\xef\xbb\xbf")) line.erase(0, 3);
}

result<std::vector<std::string>> folders_within(const std::string& folder, dangling_links how) {
  std::vector<std::string> names;
  if (const int code = host_files().list(folder, names); code != 0) return unseen(folder, code);
  std::ranges::sort(names);
  std::vector<std::string> found;
  for (const std::string& name : names) {
    const std::string path = std::filesystem::path(folder) / name;
    struct stat s{};
    const int code = host_files().stat(path, s);
    if (code != 0 && code != -ENOENT) return unseen(path, code);
    if (code == 0 && S_ISDIR(s.st_mode)) found.push_back(name);
    const bool asks = code != 0 && how == dangling_links::refused && !name.starts_with('.');
    if (asks && host_files().stat(path, s, false) == 0) {  // else it was removed
      return error(errc::not_found, "a link to nothing, perhaps meant as a folder")
          .at(path)
          .hint("mount what it links to, or remove it");
    }
  }
  return found;
}

result<void> visit_folder(const std::string& folder, const std::function<void(visited)>& visit) {
  std::vector<std::string> names;
  if (const int code = host_files().list(folder, names); code != 0) return unseen(folder, code);
  std::ranges::sort(names);
  for (const std::string& name : names) {
    visited one{.path = std::filesystem::path(folder) / name};
    const std::string path = one.path;
    int code = host_files().stat(path, one.info, false);
    if (code == -ENOENT) continue;  // removed in the meantime
    one.is_link = code == 0 && S_ISLNK(one.info.st_mode);
    if (one.is_link) {
      struct stat target{};
      code = host_files().stat(path, target);
      if (code == 0) one.info = target;
      if (code == -ENOENT || code == -ELOOP) code = 0;  // dangling or circular
    }
    if (code != 0) return unseen(path, code);
    const bool is_within = S_ISDIR(one.info.st_mode) && !one.is_link;
    visit(std::move(one));
    if (!is_within) continue;
    if (auto below = visit_folder(path, visit); !below) return below;
  }
  return {};
}

int make_folders(const std::string& path) {
  if (path.empty() || is_folder(path)) return 0;
  const std::filesystem::path plain =
      path.ends_with('/') ? std::filesystem::path(path).parent_path() : std::filesystem::path(path);
  const std::string parent = plain.parent_path();
  if (parent != plain.string()) {
    if (const int why = make_folders(parent); why != 0) return why;
  }
  const int why = host_files().make_folder(plain, 0777);
  if (why == -EEXIST) return is_folder(plain) ? 0 : -ENOTDIR;  // created concurrently
  return why != 0 ? why : sync_folder(parent);
}

int remove_tree(const std::string& path) {
  struct stat s{};
  const int none = host_files().stat(path, s, false);
  if (none != 0) return none == -ENOENT ? 0 : none;
  if (!S_ISDIR(s.st_mode)) return host_files().unlink(path);
  std::vector<std::string> names;
  if (const int why = host_files().list(path, names); why != 0) return why;
  for (const std::string& name : names) {
    if (const int why = remove_tree(std::filesystem::path(path) / name); why != 0) return why;
  }
  return host_files().remove_folder(path);
}

}  // namespace millrace
