#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace millrace {

// The file system seam: the kernel's calls for opening, reading, writing and naming files, so that
// a simulator can take the kernel's place. Each returns what its system call returns, or -errno.
// The calls block; any thread.
class file_system {
 public:
  virtual ~file_system() = default;

  // Returns a descriptor. `flags` and `mode` as in open(2); O_CLOEXEC is always added.
  virtual int open(const std::string& path, int flags, mode_t mode = 0) = 0;
  virtual int close(int fd) = 0;
  // Another descriptor of the same open file, with its locks.
  virtual int duplicate(int fd) = 0;
  // At the file's own position: pipes have no other.
  static constexpr std::uint64_t own_position = ~std::uint64_t{0};
  // May move fewer bytes than asked for; read_all() and write_all() transfer the rest.
  virtual ssize_t read(int fd, std::span<const iovec> into, std::uint64_t at) = 0;
  virtual ssize_t write(int fd, std::span<const std::byte> from, std::uint64_t at) = 0;
  // At the file's own position: for pipes and devices too.
  virtual ssize_t append(int fd, std::span<const std::byte> from) = 0;
  virtual int sync(int fd) = 0;
  virtual int truncate(int fd, std::uint64_t size) = 0;
  virtual int stat(int fd, struct stat& to) = 0;
  virtual int stat(const std::string& path, struct stat& to, bool follow = true) = 0;
  // Size and modification time as the kernel has them, without asking a server or a FUSE program:
  // never blocks.
  virtual int stat_known(int fd, struct stat& to) = 0;
  virtual int set_mode(int fd, mode_t mode) = 0;
  // As futimens(2): access and modification time.
  virtual int set_times(int fd, std::span<const timespec, 2> times) = 0;
  virtual int rename(const std::string& from, const std::string& to) = 0;
  // Exchanges two names atomically. -EINVAL or -ENOSYS if the file system cannot.
  virtual int exchange(const std::string& one, const std::string& other) = 0;
  virtual int link(const std::string& from, const std::string& to) = 0;
  virtual int unlink(const std::string& path) = 0;
  virtual int make_folder(const std::string& path, mode_t mode) = 0;
  virtual int remove_folder(const std::string& path) = 0;
  // The names in a folder, without "." and "..", in no particular order.
  virtual int list(const std::string& folder, std::vector<std::string>& names) = 0;
  virtual int room(const std::string& path, struct statvfs& to) = 0;
  // Open file description locks (F_OFD_SETLK, F_OFD_GETLK): -EAGAIN if another holds it.
  virtual int lock(int fd, struct flock range) = 0;
  virtual int find_lock(int fd, struct flock& range) = 0;
  // The lock of the whole file (flock(2)), independent of the locks of ranges.
  virtual int lock_whole(int fd) = 0;

  // Sets whether reads bypass the page cache from now on (O_DIRECT).
  virtual int read_past_cache(int fd, bool past) = 0;
  // The alignment of such reads in bytes; 0: the file system does not support them.
  virtual std::size_t direct_alignment(int fd) = 0;
  // The share of a file's `size` bytes that is in the page cache; nullopt if the kernel does not
  // say.
  virtual std::optional<double> cached_share(int fd, std::uint64_t size) = 0;
  virtual bool is_fuse(int fd) = 0;

 protected:
  file_system() = default;
  file_system(const file_system&) = default;
  file_system& operator=(const file_system&) = default;
};

// The kernel's file system, or the simulator that has taken its place (engine/host/seams.h).
file_system& host_files();

// A descriptor of host_files(), closed by the destructor. Movable.
class held_file {
 public:
  held_file() = default;
  explicit held_file(int fd) : fd_(fd) {}
  held_file(held_file&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  held_file& operator=(held_file&& other) noexcept {
    close();
    fd_ = std::exchange(other.fd_, -1);
    return *this;
  }
  ~held_file() { close(); }

  // The descriptor, or the -errno it was constructed with.
  int fd() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  explicit operator bool() const { return fd_ >= 0; }
  // 0 or -errno: some file systems report a failed write only on closing.
  int close() { return fd_ < 0 ? 0 : host_files().close(std::exchange(fd_, -1)); }

 private:
  int fd_ = -1;
};

// Retry short transfers and EINTR. Return 0 or -errno; read_all returns the number of bytes, which
// is smaller than requested if the file ended.
ssize_t read_all(int fd, std::span<std::byte> into, std::uint64_t at);
int write_all(int fd, std::span<const std::byte> from, std::uint64_t at);

// A file's modification time in nanoseconds since 1970.
inline std::int64_t modified_ns(const struct stat& s) {
  return s.st_mtim.tv_sec * 1'000'000'000 + s.st_mtim.tv_nsec;
}

// Syncs the names in a folder (empty: the current one) to the disk. 0 or -errno.
int sync_folder(const std::string& folder);

}  // namespace millrace
