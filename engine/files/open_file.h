#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/base/result.h"

namespace millrace {

// A regular file, open for reading. Its size is determined once, by open(): a file that ends
// earlier has shrunk, and nothing beyond that size is read. A file that is modified while open is
// `changed`.
//
// Its descriptor may be closed while nobody reads, and opened again, so that more files can be open
// than the process has descriptors. One I/O thread, except for open(), reopen() and cached_share().
class open_file {
 public:
  // Fails with not_found, not_allowed, usage (not a regular file), no_descriptors, io_failed.
  static result<std::shared_ptr<open_file>> open(const std::string& path);
  open_file(int fd, std::string path, std::uint64_t size, bool is_fuse)
      : fd_(fd), is_fuse_(is_fuse), size_(size), path_(std::move(path)) {}
  ~open_file();
  open_file(const open_file&) = delete;
  open_file& operator=(const open_file&) = delete;

  int fd() const { return fd_; }
  bool has_descriptor() const { return fd_ >= 0; }
  void close_descriptor();
  // Fails like open(), and with `changed` if the name now belongs to another file.
  result<void> reopen();

  // Fails with `changed` if the open file has been modified since open(), as far as the kernel
  // knows (on FUSE, only by its size): otherwise all bytes read so far are of one version. Needs
  // the descriptor; never blocks.
  result<void> check_unchanged() const;

  // Whether to read by pread: on FUSE the ring returned wrong bytes after a short read
  // (docs/decisions.md, 3).
  bool is_fuse() const { return is_fuse_; }
  std::uint64_t size() const { return size_; }
  dev_t device() const { return identity_.device; }
  // Identifies the file and its version: by device, inode, modification time and size; on FUSE
  // without the time.
  std::string version() const;
  const std::string& path() const { return path_; }

  // Makes reads bypass the page cache (O_DIRECT) from now on, if the file system can. Offsets must
  // then be multiples of alignment(), and buffers aligned and as large as the size rounded up.
  void read_directly();
  void read_through_cache();
  std::size_t alignment() const { return alignment_; }  // 1: through the page cache

  // The share of the file's pages that is in the page cache, 0 to 1; nullopt if the kernel does not
  // say.
  std::optional<double> cached_share() const;

 private:
  struct identity {
    dev_t device = 0;
    ino_t inode = 0;
    std::int64_t changed_s = 0;
    std::int64_t changed_ns = 0;
    bool operator==(const identity&) const = default;
  };
  int fd_;
  bool is_fuse_;
  std::size_t alignment_ = 1;
  std::uint64_t size_;
  identity identity_;
  std::string path_;
};

}  // namespace millrace
