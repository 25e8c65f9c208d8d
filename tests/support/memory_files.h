#pragma once

#include <cerrno>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include "engine/base/random.h"
#include "engine/files/file_system.h"
#include "tests/support/unhooked.h"

namespace millrace::testing {

// A file system in memory that knows what has reached the disk. Several processes share it;
// current() is the one that calls. All calls on one thread.
//
// Data that fsync has not promised may be lost: crash() keeps of each file some of the writes since
// the last sync, the last of them possibly torn, in any order, and of each folder some of the
// changes of names, as the seed determines. Everything for which sync() returned 0 is kept.
class memory_files final : public file_system {
 public:
  explicit memory_files(std::uint64_t seed = 0);
  ~memory_files() override;

  // Called before each call with its name and path ("open", "/a/b"). Returns -errno, and the call
  // then has no effect, or 0.
  std::function<int(const char* call, const std::string& path)> fault;
  // Set while an I/O thread runs, which may not wait for a disk: what it calls nevertheless.
  bool is_on_io_thread = false;
  std::set<std::string> calls_on_io_threads;
  // Whether it can exchange names: some file systems cannot.
  bool exchanges = true;
  // Free bytes of the disk; writing more fails with ENOSPC.
  std::uint64_t free_bytes = std::uint64_t{1} << 40;
  // Reads and writes move fewer bytes than requested, and some are interrupted, as the seed
  // determines.
  bool moves_pieces = false;

  // The process that calls from now on. Descriptors and locks belong to the process that opened
  // them.
  void run_as(int process) { current_ = process; }
  int current() const { return current_; }
  // Closes everything that the process has open; its later calls fail without effect. What it wrote
  // is in the page cache, where the others can read it.
  void kill(int process);
  // The host loses power: every process is killed, and the disk keeps what it may have.
  void crash();
  // A killed process may be started again.
  void restart(int process) { dead_.erase(process); }

  std::size_t open_descriptors(int process) const;
  std::size_t open_descriptors() const { return open_.size(); }
  std::uint64_t calls() const { return calls_; }
  // Content as a process would read it, and the paths of all files, for the checks of a test.
  bool exists(const std::string& path) const;
  std::string content(const std::string& path) const;
  std::vector<std::string> paths() const;
  // Puts a file on the disk, last written to at `changed_ns` of the clock if given, else now.
  void put(const std::string& path, std::string content,
           std::optional<std::int64_t> changed_ns = std::nullopt);
  // Changes a byte without any process's doing.
  void rot(const std::string& path, std::uint64_t at);

  int open(const std::string& path, int flags, mode_t mode) override;
  int close(int fd) override;
  int duplicate(int fd) override;
  ssize_t read(int fd, std::span<const iovec> into, std::uint64_t at) override;
  ssize_t write(int fd, std::span<const std::byte> from, std::uint64_t at) override;
  ssize_t append(int fd, std::span<const std::byte> from) override;
  int sync(int fd) override;
  int truncate(int fd, std::uint64_t size) override;
  int stat(int fd, struct stat& to) override;
  int stat(const std::string& path, struct stat& to, bool follow) override;
  int stat_known(int fd, struct stat& to) override;
  int set_mode(int /*fd*/, mode_t /*mode*/) override { return 0; }
  int set_times(int fd, std::span<const timespec, 2> times) override;
  int rename(const std::string& from, const std::string& to) override;
  int exchange(const std::string& one, const std::string& other) override;
  int link(const std::string& from, const std::string& to) override;
  int unlink(const std::string& path) override;
  int make_folder(const std::string& path, mode_t mode) override;
  int remove_folder(const std::string& path) override;
  int list(const std::string& folder, std::vector<std::string>& names) override;
  int room(const std::string& path, struct statvfs& to) override;
  int lock(int fd, struct flock range) override;
  int find_lock(int fd, struct flock& range) override;
  int lock_whole(int fd) override;
  int read_past_cache(int /*fd*/, bool past) override { return past ? -EINVAL : 0; }
  std::size_t direct_alignment(int /*fd*/) override { return 0; }
  std::optional<double> cached_share(int /*fd*/, std::uint64_t /*size*/) override {
    return std::nullopt;
  }
  bool is_fuse(int /*fd*/) override { return false; }

 private:
  struct node;
  struct descriptor;
  using node_ptr = std::shared_ptr<node>;

  // A call under way, whose own memory does not count as the program's.
  struct call {
    int refused;  // 0, or -errno
    descriptor* of = nullptr;
    unhooked here = {};
  };
  call begin(const char* which, const std::string& path);
  call begin(const char* which, int fd);
  node_ptr find(const std::string& path) const;
  // The folder that contains `path`; null, and `why`, if there is none.
  node_ptr folder_of(const std::string& path, int& why) const;
  void forget(int fd);
  static void name(const node_ptr& folder, const std::string& path, const node_ptr& what,
                   const std::string& old = {});
  static void describe(const node& n, struct stat& to);
  static void change(node& n);
  void lose_unsynced(const node_ptr& n, std::set<const node*>& seen);

  node_ptr root_;
  std::map<int, std::shared_ptr<descriptor>> open_;
  std::set<int> dead_;
  random_stream random_;
  int current_ = 0;
  int next_fd_;
  ino_t next_inode_ = 2;
  std::uint64_t calls_ = 0;
};

}  // namespace millrace::testing
