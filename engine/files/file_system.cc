#include "engine/files/file_system.h"

#include <dirent.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <memory>
#include <string_view>

#include "engine/base/units.h"
#include "engine/host/seams.h"

namespace millrace {
namespace {

#ifndef FUSE_SUPER_MAGIC
constexpr long FUSE_SUPER_MAGIC = 0x65735546;
#endif

template <class T>
T or_errno(T returned) {
  return returned < 0 ? static_cast<T>(-errno) : returned;
}

// The path for the kernel. One with a NUL byte would name another file there, so it becomes one
// that cannot exist.
const char* in_kernel(const std::string& path) {
  return path.find('\0') == path.npos ? path.c_str() : "";
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

class kernel_files final : public file_system {
 public:
  int open(const std::string& path, int flags, mode_t mode) override {
    return or_errno(::open(in_kernel(path), flags | O_CLOEXEC, mode));
  }
  int close(int fd) override { return or_errno(::close(fd)); }
  int duplicate(int fd) override { return or_errno(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); }
  ssize_t read(int fd, std::span<const iovec> into, std::uint64_t at) override {
    const auto pieces = static_cast<int>(into.size());
    if (at == own_position) return or_errno(::readv(fd, into.data(), pieces));
    return or_errno(::preadv(fd, into.data(), pieces, static_cast<off_t>(at)));
  }
  ssize_t write(int fd, std::span<const std::byte> from, std::uint64_t at) override {
    return or_errno(::pwrite(fd, from.data(), from.size(), static_cast<off_t>(at)));
  }
  ssize_t append(int fd, std::span<const std::byte> from) override {
    return or_errno(::write(fd, from.data(), from.size()));
  }
  int sync(int fd) override { return or_errno(::fsync(fd)); }
  int truncate(int fd, std::uint64_t size) override {
    return or_errno(::ftruncate(fd, static_cast<off_t>(size)));
  }
  int stat(int fd, struct stat& to) override { return or_errno(::fstat(fd, &to)); }
  int stat(const std::string& path, struct stat& to, bool follow) override {
    return or_errno(follow ? ::stat(in_kernel(path), &to) : ::lstat(in_kernel(path), &to));
  }
  int stat_known(int fd, struct stat& to) override {
    struct statx found{};
    constexpr unsigned wanted = STATX_MTIME | STATX_SIZE;
    const int none = ::statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, wanted, &found);
    if (none == 0 && (found.stx_mask & wanted) != wanted) return -ENODATA;
    to = {};
    to.st_size = static_cast<off_t>(found.stx_size);
    to.st_mtim = {.tv_sec = found.stx_mtime.tv_sec, .tv_nsec = found.stx_mtime.tv_nsec};
    return or_errno(none);
  }
  int set_mode(int fd, mode_t mode) override { return or_errno(::fchmod(fd, mode)); }
  int set_times(int fd, std::span<const timespec, 2> times) override {
    return or_errno(::futimens(fd, times.data()));
  }
  int rename(const std::string& from, const std::string& to) override {
    return or_errno(::rename(in_kernel(from), in_kernel(to)));
  }
  int exchange(const std::string& one, const std::string& other) override {
    return or_errno(
        ::renameat2(AT_FDCWD, in_kernel(one), AT_FDCWD, in_kernel(other), RENAME_EXCHANGE));
  }
  int link(const std::string& from, const std::string& to) override {
    return or_errno(::link(in_kernel(from), in_kernel(to)));
  }
  int unlink(const std::string& path) override { return or_errno(::unlink(in_kernel(path))); }
  int make_folder(const std::string& path, mode_t mode) override {
    return or_errno(::mkdir(in_kernel(path), mode));
  }
  int remove_folder(const std::string& path) override { return or_errno(::rmdir(in_kernel(path))); }
  int list(const std::string& folder, std::vector<std::string>& names) override;
  int room(const std::string& path, struct statvfs& to) override {
    return or_errno(::statvfs(in_kernel(path), &to));
  }
  int lock(int fd, struct flock range) override {
    return or_errno(::fcntl(fd, F_OFD_SETLK, &range));
  }
  int find_lock(int fd, struct flock& range) override {
    return or_errno(::fcntl(fd, F_OFD_GETLK, &range));
  }
  int lock_whole(int fd) override { return or_errno(::flock(fd, LOCK_EX | LOCK_NB)); }
  int read_past_cache(int fd, bool past) override {
    return or_errno(::fcntl(fd, F_SETFL, past ? O_RDONLY | O_DIRECT : O_RDONLY));
  }
  std::size_t direct_alignment(int fd) override;
  std::optional<double> cached_share(int fd, std::uint64_t size) override;
  bool is_fuse(int fd) override {
    struct statfs fs{};
    return ::fstatfs(fd, &fs) == 0 && fs.f_type == FUSE_SUPER_MAGIC;
  }
};

int kernel_files::list(const std::string& folder, std::vector<std::string>& names) {
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(in_kernel(folder)), ::closedir);
  if (!open) return -errno;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(open.get());
    if (entry == nullptr) return -errno;
    const std::string_view name(static_cast<const char*>(entry->d_name));
    if (name != "." && name != "..") names.emplace_back(name);
  }
}

// statx(2) reports it since Linux 6.1; otherwise a page suits every disk.
std::size_t kernel_files::direct_alignment(int fd) {
#ifdef STATX_DIOALIGN
  struct statx info{};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
      (info.stx_mask & STATX_DIOALIGN) != 0) {
    return std::max(info.stx_dio_offset_align, info.stx_dio_mem_align);
  }
#endif
  return fd >= 0 ? page_bytes : 0;
}

std::optional<double> kernel_files::cached_share(int fd, std::uint64_t size) {
  if (size == 0) return std::nullopt;
  const std::uint64_t pages = (size + page_bytes - 1) / page_bytes;
  cache_range all{0, 0};  // a size of 0: to the end
  cache_counts counts{};
  if (syscall(cachestat_number, fd, &all, &counts, 0U) == 0) {
    return static_cast<double>(counts.cached) / static_cast<double>(pages);
  }
  const bool no_such_call = errno == ENOSYS;
  // For a file that this user may not write, mincore(2) claims that all pages are cached.
  struct stat info{};
  const bool own = ::fstat(fd, &info) == 0 && (geteuid() == 0 || geteuid() == info.st_uid);
  if (!no_such_call || !own) return std::nullopt;
  // The mapping is never touched, so a file that shrinks cannot hurt.
  void* mapped = mmap(nullptr, size, PROT_NONE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return std::nullopt;
  std::vector<unsigned char> present(pages);
  const bool told = mincore(mapped, size, present.data()) == 0;
  munmap(mapped, size);
  if (!told) return std::nullopt;
  const auto cached = std::ranges::count_if(present, [](unsigned char p) { return (p & 1) != 0; });
  return static_cast<double>(cached) / static_cast<double>(pages);
}

// Threads that begin read files of the host while a test sets it.
std::atomic<file_system*> in_the_kernels_place = nullptr;

}  // namespace

file_system& host_files() {
  static kernel_files kernel;
  file_system* const instead = in_the_kernels_place.load(std::memory_order_acquire);
  return instead != nullptr ? *instead : kernel;
}

void simulate_files(file_system* instead) {
  in_the_kernels_place.store(instead, std::memory_order_release);
}

ssize_t read_all(int fd, std::span<std::byte> into, std::uint64_t at) {
  std::size_t done = 0;
  while (done < into.size()) {
    const iovec rest{into.data() + done, into.size() - done};
    const ssize_t n = host_files().read(fd, std::span(&rest, 1), at + done);
    if (n == -EINTR) continue;
    if (n < 0) return n;
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  return static_cast<ssize_t>(done);
}

int write_all(int fd, std::span<const std::byte> from, std::uint64_t at) {
  while (!from.empty()) {
    const ssize_t n = host_files().write(fd, from, at);
    if (n == -EINTR) continue;
    if (n < 0) return static_cast<int>(n);
    from = from.subspan(static_cast<std::size_t>(n));
    at += static_cast<std::uint64_t>(n);
  }
  return 0;
}

int sync_folder(const std::string& folder) {
  const held_file open(host_files().open(folder.empty() ? "." : folder, O_RDONLY | O_DIRECTORY));
  return open ? host_files().sync(open.fd()) : open.fd();
}

}  // namespace millrace
