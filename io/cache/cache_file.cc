#include "io/cache/cache_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace millrace {
namespace {

bool is_own(int fd) {
  struct stat info{};
  return host_files().stat(fd, info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid() &&
         (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

bool has_mark_at(int fd, std::uint64_t at) {
  std::array<char, cache_mark.size()> there{};
  return read_exactly(fd, there.data(), there.size(), at) &&
         std::string_view(there.data(), there.size()) == cache_mark;
}

error open_error(const std::string& path, int why) {
  return error(kind_of(why), "cannot open a file of the cache").at(path).cause(why);
}

}  // namespace

result<held_file> open_own(const std::string& path, int flags) {
  file_system& files = host_files();
  for (int attempt = 0; attempt < 2; ++attempt) {
    held_file file(files.open(path, flags | O_NOFOLLOW | O_NONBLOCK, 0600));
    if (!file && file.fd() != -ELOOP) return open_error(path, -file.fd());
    if (file && is_own(file.fd())) return file;
    if ((flags & O_CREAT) == 0) break;
    if (const int gone = files.unlink(path); gone != 0 && gone != -ENOENT) break;
  }
  return open_error(path, EPERM);
}

bool begins_with_mark(int fd) {
  return has_mark_at(fd, 0);
}

bool ends_with_mark(int fd) {
  struct stat info{};
  return host_files().stat(fd, info) == 0 &&
         info.st_size >= static_cast<off_t>(cache_mark.size()) &&
         has_mark_at(fd, static_cast<std::uint64_t>(info.st_size) - cache_mark.size());
}

bool is_named(const std::string& path, int fd) {
  struct stat open{};
  struct stat named{};
  return host_files().stat(fd, open) == 0 && host_files().stat(path, named, false) == 0 &&
         open.st_ino == named.st_ino && open.st_dev == named.st_dev;
}

void remove_name(const std::string& path, int fd) {
  if (is_named(path, fd)) host_files().unlink(path);
}

bool lock_file(int fd, short kind, std::uint64_t from) {
  struct flock range{};
  range.l_type = kind;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(from);
  return host_files().lock(fd, range) == 0;
}

void unlock_front(int fd, std::uint64_t bytes) {
  if (bytes == 0) return;  // a length of 0 would mean all
  struct flock range{};
  range.l_type = F_UNLCK;
  range.l_whence = SEEK_SET;
  range.l_len = static_cast<off_t>(bytes);
  host_files().lock(fd, range);
}

std::optional<std::uint64_t> locked_from(int fd) {
  struct flock range{};
  range.l_type = F_RDLCK;
  range.l_whence = SEEK_SET;
  if (host_files().find_lock(fd, range) != 0 || range.l_type == F_UNLCK) return std::nullopt;
  return static_cast<std::uint64_t>(range.l_start);
}

bool read_exactly(int fd, void* into, std::size_t size, std::uint64_t at) {
  const std::span to(static_cast<std::byte*>(into), size);
  return read_all(fd, to, at) == static_cast<ssize_t>(size);
}

int write_exactly(int fd, std::span<const std::byte> data, std::uint64_t at) {
  return -write_all(fd, data, at);
}

}  // namespace millrace
