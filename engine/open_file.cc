#include "engine/open_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "engine/memory.h"

namespace millrace {
namespace {

#ifndef FUSE_SUPER_MAGIC
constexpr long FUSE_SUPER_MAGIC = 0x65735546;
#endif

error open_error(const std::string& path, int why) {
  switch (why) {
    case ENOENT:
    case ENOTDIR:
      return error(errc::not_found, "no such file")
          .at(path)
          .cause(why)
          .skippable()
          .hint("check the path and the brace range");
    case EACCES:
    case EPERM:
      return error(errc::not_allowed, "may not read the file")
          .at(path)
          .cause(why)
          .skippable()
          .hint("check the permissions");
    case EMFILE:
    case ENFILE:
      return error(errc::no_descriptors, "no file descriptor is left")
          .at(path)
          .cause(why)
          .hint("raise `ulimit -n`, or open fewer shards at once");
    default:
      return error(errc::io_failed, "cannot open the file").at(path).cause(why).skippable();
  }
}

// What direct reads of this file must be aligned to: statx(2) tells since Linux 6.1, else a page
// fits every disk. 0: the file system does not do them.
std::size_t direct_alignment(int fd) {
#ifdef STATX_DIOALIGN
  struct statx info{};
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
      (info.stx_mask & STATX_DIOALIGN) != 0) {
    return std::max(info.stx_dio_offset_align, info.stx_dio_mem_align);
  }
#endif
  return fd >= 0 ? page_bytes : 0;
}

struct cache_range {
  std::uint64_t offset;
  std::uint64_t size;
};
struct cache_counts {  // of cachestat(2), since Linux 6.5
  std::uint64_t cached;
  std::uint64_t dirty;
  std::uint64_t writeback;
  std::uint64_t evicted;
  std::uint64_t recently_evicted;
};
constexpr long cachestat_number = 451;

}  // namespace

result<std::shared_ptr<open_file>> open_file::open(const std::string& path) {
  auto made = std::make_shared<open_file>(-1, path, 0, false);
  if (auto opened = made->reopen(); !opened) return opened.error();
  return made;
}

result<void> open_file::reopen() {
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return open_error(path_, errno);
  // Without waiting for a pipe's writer; but a file opened so is never waited for by io_uring.
  fcntl(fd, F_SETFL, O_RDONLY);
  struct stat info{};
  struct statfs fs{};
  if (fstat(fd, &info) != 0 || fstatfs(fd, &fs) != 0) {
    const int why = errno;
    ::close(fd);
    return open_error(path_, why);
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return error(errc::usage, S_ISDIR(info.st_mode) ? "is a folder" : "is not a regular file")
        .at(path_)
        .hint("name the shards themselves, for instance with a brace range");
  }
  const identity found{info.st_dev, info.st_ino, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
  if (identity_.inode != 0 && found != identity_) {
    ::close(fd);
    return error(errc::changed, "the file was replaced or changed while it was read")
        .at(path_)
        .skippable()
        .hint("do not rewrite shards in use; write a new name and rename");
  }
  if (identity_.inode == 0) {
    identity_ = found;
    size_ = static_cast<std::uint64_t>(info.st_size);
    is_fuse_ = fs.f_type == FUSE_SUPER_MAGIC;
  }
  fd_ = fd;
  if (alignment_ > 1) read_directly();
  return {};
}

void open_file::close_descriptor() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

void open_file::read_directly() {
  const std::size_t alignment = direct_alignment(fd_);
  const bool works = alignment > 0 && fcntl(fd_, F_SETFL, O_RDONLY | O_DIRECT) == 0;
  alignment_ = works ? alignment : 1;
}

void open_file::read_through_cache() {
  if (alignment_ > 1) fcntl(fd_, F_SETFL, O_RDONLY);
  alignment_ = 1;
}

std::optional<double> open_file::cached_share() const {
  if (size_ == 0) return std::nullopt;
  const std::uint64_t pages = (size_ + page_bytes - 1) / page_bytes;
  cache_range all{0, 0};  // a size of 0: to the end
  cache_counts counts{};
  if (syscall(cachestat_number, fd_, &all, &counts, 0U) == 0) {
    return static_cast<double>(counts.cached) / static_cast<double>(pages);
  }
  const bool no_such_call = errno == ENOSYS;
  // Who could not write the file gets the answer "all of it" from mincore(2).
  struct stat info{};
  const bool own = fstat(fd_, &info) == 0 && (geteuid() == 0 || geteuid() == info.st_uid);
  if (!no_such_call || !own) return std::nullopt;
  // The mapping is never touched, so a file that shrinks cannot hurt.
  void* mapped = mmap(nullptr, size_, PROT_NONE, MAP_SHARED, fd_, 0);
  if (mapped == MAP_FAILED) return std::nullopt;
  std::vector<unsigned char> present(pages);
  const bool told = mincore(mapped, size_, present.data()) == 0;
  munmap(mapped, size_);
  if (!told) return std::nullopt;
  const auto cached = std::ranges::count_if(present, [](unsigned char p) { return (p & 1) != 0; });
  return static_cast<double>(cached) / static_cast<double>(pages);
}

open_file::~open_file() {
  close_descriptor();
}

}  // namespace millrace
