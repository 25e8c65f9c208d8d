#include "engine/files/open_file.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "engine/base/hints.h"
#include "engine/files/file_system.h"

namespace millrace {
namespace {

error open_error(const std::string& path, int why) {
  const auto told = [&](const char* what, const char* hint) {
    return error(kind_of(why), what).at(path).cause(why).skippable().hint(hint);
  };
  switch (kind_of(why)) {
    case errc::not_found:
      return told("no such file", "check the path");
    case errc::not_allowed:
      return told("no permission to read the file", "check the permissions");
    case errc::no_descriptors:
      return told("no file descriptor is left", "raise `ulimit -n`, or open fewer shards at once");
    case errc::no_memory:
      return out_of_memory().at(path);
    default:
      return told("cannot open the file",
                  why == ELOOP ? "its links lead in a circle" : "check the disk (dmesg, smartctl)");
  }
}

error changed_while_read(const std::string& path) {
  return error(errc::changed, "the file was replaced or changed while it was read")
      .at(path)
      .skippable()
      .hint(new_names_hint);
}

}  // namespace

result<std::shared_ptr<open_file>> open_file::open(const std::string& path) {
  auto made = std::make_shared<open_file>(-1, path, 0, false);
  if (auto opened = made->reopen(); !opened) return opened.error();
  return made;
}

result<void> open_file::reopen() {
  file_system& files = host_files();
  // O_NONBLOCK, so as not to wait for a pipe's writer; io_uring never waits for a file opened so.
  const int fd = files.open(path_, O_RDONLY | O_NONBLOCK);
  if (fd < 0) return open_error(path_, -fd);
  held_file open(fd);
  files.read_past_cache(fd, false);
  struct stat info{};
  if (const int failed = files.stat(fd, info); failed < 0) return open_error(path_, -failed);
  if (!S_ISREG(info.st_mode)) {
    const bool is_folder = S_ISDIR(info.st_mode);
    return error(errc::usage,
                 is_folder ? "this is a folder, not a file" : "this is not a plain file")
        .at(path_)
        .hint(!is_folder             ? "name the shards themselves, for instance with a brace range"
              : path_.ends_with('/') ? "list its shards with find_shards(), or name them"
                                     : "write a / at its end to name the shards in it");
  }
  const identity found{info.st_dev, info.st_ino, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
  if (identity_.inode != 0 && found != identity_) return changed_while_read(path_);
  if (identity_.inode == 0) {
    identity_ = found;
    size_ = static_cast<std::uint64_t>(info.st_size);
    is_fuse_ = files.is_fuse(fd);
  }
  fd_ = open.release();
  if (alignment_ > 1) read_directly();
  return {};
}

result<void> open_file::check_unchanged() const {
  struct stat now{};
  if (host_files().stat_known(fd_, now) != 0) return {};
  // FUSE programs may invent a new time on every call.
  const bool is_untouched = is_fuse_ || (now.st_mtim.tv_sec == identity_.changed_s &&
                                         now.st_mtim.tv_nsec == identity_.changed_ns);
  if (is_untouched && static_cast<std::uint64_t>(now.st_size) == size_) return {};
  return changed_while_read(path_);
}

std::string open_file::version() const {
  return fmt::format("{}.{}.{}.{}.{}", identity_.device, identity_.inode,
                     is_fuse_ ? 0 : identity_.changed_s, is_fuse_ ? 0 : identity_.changed_ns,
                     size_);
}

void open_file::close_descriptor() {
  if (fd_ >= 0) host_files().close(std::exchange(fd_, -1));
}

void open_file::read_directly() {
  const std::size_t alignment = host_files().direct_alignment(fd_);
  const bool works = alignment > 0 && host_files().read_past_cache(fd_, true) == 0;
  alignment_ = works ? alignment : 1;
}

void open_file::read_through_cache() {
  if (alignment_ > 1) host_files().read_past_cache(fd_, false);
  alignment_ = 1;
}

std::optional<double> open_file::cached_share() const {
  return host_files().cached_share(fd_, size_);
}

open_file::~open_file() {
  close_descriptor();
}

}  // namespace millrace
