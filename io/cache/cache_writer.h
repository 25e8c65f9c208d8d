#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/cache/cached_file.h"

namespace millrace {

// Fills an entry. Holds a lock on all of NAME.part except the bytes that are verified: those that
// it has written itself, or compared with their sums. Readers get the bytes before the lock
// (part_file). If the version has a digest, the object's last bytes are withheld, and the entry is
// not completed, until the whole object is known to match it.
//
// One thread at a time. Blocks.
class cache_writer {
 public:
  // Null if another writer fills it, has completed it or removed it. Fails as open_own() does.
  static result<std::unique_ptr<cache_writer>> open(const std::string& path, const std::string& url,
                                                    const object_version& version);
  cache_writer(const cache_writer&) = delete;
  cache_writer& operator=(const cache_writer&) = delete;

  std::uint64_t size() const { return size_; }  // bytes of the object so far
  std::uint64_t size_on_disk() const;
  // Makes the file at least `bytes` long, so that other processes see its final size. Fails as
  // append() does.
  result<void> reserve(std::uint64_t bytes);
  // Fails with io_failed if the disk is full, read-only or broken, and with integrity if these are
  // the last bytes and the object does not match its digest; the entry is then removed.
  result<void> append(std::span<const std::byte> data);
  // Completes the entry and gives it its name. If the file was removed meanwhile, the entry has no
  // name, and exists only for processes that have it open.
  result<void> finish();
  bool has_lost_its_name() const { return lost_; }
  void give_up();  // removes the entry
  // Removes the entry, and marks it for its readers: its bytes are not the object's.
  void refuse();
  // Shows readers that this process is alive. Any thread.
  void keep_alive() const;

 private:
  cache_writer() = default;
  error failed(int why);
  result<void> check(std::span<const std::byte> data);
  result<void> end_block();
  void keep_prefix();
  void publish(std::uint64_t bytes);

  held_file part_;
  held_file sums_file_;
  std::string path_;  // of the complete entry
  std::string url_;
  object_version version_;
  std::uint64_t size_ = 0;
  std::uint32_t block_sum_ = 0;
  std::vector<std::uint32_t> sums_;
  std::optional<digest_check> check_;  // until the whole object has arrived and matches
  bool given_up_ = false;
  bool lost_ = false;
};

// An entry that is being filled, as its readers see it. They follow the file even if it has lost
// its name. Any process. Blocks.
class part_file {
 public:
  explicit part_file(held_file file) : file_(std::move(file)) {}

  struct state {
    bool filling = false;       // a writer has it; else it is complete, abandoned or given up
    bool named = false;         // has not been removed
    std::uint64_t there = 0;    // while filling: bytes that are verified
    std::int64_t moved_ns = 0;  // the writer's last sign of life
    bool operator==(const state&) const = default;
  };
  state look() const;
  int fd() const { return file_.fd(); }
  // Once no process fills it: whether its bytes were found not to be the object's (refuse()).
  bool is_refused() const;
  // The file as a complete entry; null if it is not one.
  std::unique_ptr<cached_file> completed() const;

 private:
  held_file file_;
};

}  // namespace millrace
