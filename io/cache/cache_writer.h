#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/cache/cached_file.h"

namespace millrace {

// Fills an entry. It holds a lock on all of NAME.part but the bytes that are known to be right,
// which it has written itself or compared with their sums: readers are given the bytes before the
// lock (part_file). Where the version has a digest, the object's last bytes are given to nobody,
// and the entry is not completed, before all of it is known to have that digest.
//
// One thread at a time. Blocks.
class cache_writer {
 public:
  // Null when another fills it, has completed it or removed it. Fails as open_own() does.
  static result<std::unique_ptr<cache_writer>> open(const std::string& path, const std::string& url,
                                                    const object_version& version);
  cache_writer(const cache_writer&) = delete;
  cache_writer& operator=(const cache_writer&) = delete;

  std::uint64_t size() const { return size_; }  // bytes of the object so far
  std::uint64_t size_on_disk() const;
  // Makes the file at least `bytes` long, so that other processes see how large it will be. Fails
  // as append().
  result<void> reserve(std::uint64_t bytes);
  // Fails with io_failed when the disk is full, read-only or broken, and with integrity when these
  // are the last bytes and the whole does not have its digest; the entry is gone then.
  result<void> append(std::span<const std::byte> data);
  // The entry is complete, and has its name; but where somebody has removed what was written so
  // far, it has none, and is there for those only who have it open.
  result<void> finish();
  bool has_lost_its_name() const { return lost_; }
  void give_up();  // removes the entry
  // Removes it, and tells those who have it open that its bytes are not the object's.
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
  std::optional<digest_check> check_;  // until all has come and is right
  bool given_up_ = false;
  bool lost_ = false;
};

// An entry that is being filled, as its readers see it: they follow the file, also where it has
// lost its name. Any process. Blocks.
class part_file {
 public:
  explicit part_file(held_file file) : file_(std::move(file)) {}

  struct state {
    bool filling = false;       // somebody does; else it is complete, abandoned or given up
    bool named = false;         // has not been removed
    std::uint64_t there = 0;    // while filling: bytes that are known to be right
    std::int64_t moved_ns = 0;  // when its writer was last seen
    bool operator==(const state&) const = default;
  };
  state look() const;
  int fd() const { return file_.fd(); }
  // Once nobody fills it: whether its bytes were found not to be the object's (refuse()).
  bool is_refused() const;
  // The file as a complete entry; null where it is none.
  std::unique_ptr<cached_file> completed() const;

 private:
  held_file file_;
};

}  // namespace millrace
