#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/result.h"
#include "io/http/transfer.h"

namespace millrace {

// A folder of objects fetched from elsewhere, shared by all processes of a user. Each object is one
// file:
//
//   NAME.part     being filled: its first bytes, by whoever holds its lock (an open file
//   description lock,
//                 which ends with the process)
//   NAME.sums     the CRC of each block of NAME.part that is complete
//   NAME          filled: the object, the CRC of each block of 1 MiB, a JSON text that says what it
//   is,
//                 the text's length, the CRC of all that stands behind the object, and "mrcache1"
//
// NAME is the sha256 of the object's URL and of what the server says about its version, so that
// versions never meet. A file is renamed when it is complete and on the disk; a crash leaves a
// NAME.part, of which the blocks that fit their sums are used again. These calls block; run them in
// a pool.

inline constexpr std::size_t cache_block_bytes = 1 << 20;

struct cache_options {
  std::string folder;              // empty: no cache
  std::uint64_t most_bytes = 0;    // of all entries; 0: as the disk allows
  std::uint64_t least_free = 0;    // to be left on the disk
  std::vector<std::string> paths;  // files whose path begins with one of these are cached as well
};

// The URL without userinfo and without what signs a request: the same object, whoever asks. Pure.
std::string canonical_url(const std::string& url);
// What `version` of the object at `url` is called in a cache. Pure.
std::string cache_name(const std::string& url, const object_version& version);

struct cache_entry {
  std::string name;
  std::string url;  // without secrets
  std::uint64_t bytes = 0;
  std::int64_t used_ns = 0;  // when it was used last, since 1970
  bool complete = false;
};

// An open file of a complete entry. It is not evicted while it is open.
class cached_file {
 public:
  ~cached_file();
  cached_file(const cached_file&) = delete;
  cached_file& operator=(const cached_file&) = delete;

  const std::string& path() const { return path_; }
  std::uint64_t bytes() const { return bytes_; }
  const std::string& url() const { return url_; }
  // Whether block `index`, or what the object has of it, had this crc32c when it was written.
  bool has_sum(std::uint64_t index, std::uint32_t sum) const {
    return index < sums_.size() && sums_[index] == sum;
  }
  std::uint64_t blocks() const { return sums_.size(); }
  int fd() const { return fd_; }

 private:
  friend class cache_folder;
  cached_file() = default;
  int fd_ = -1;
  std::string path_;
  std::uint64_t bytes_ = 0;
  std::string url_;
  std::vector<std::uint32_t> sums_;
};

// The one that fills an entry.
class cache_writer {
 public:
  ~cache_writer();  // leaves what is there to the next one
  cache_writer(const cache_writer&) = delete;
  cache_writer& operator=(const cache_writer&) = delete;

  std::uint64_t size() const { return size_; }  // bytes of the object so far
  // Fails with io_failed when the disk is full, read-only or broken; the entry is gone then.
  result<void> append(std::span<const std::byte> data);
  result<void> finish();
  void give_up();  // removes the entry

 private:
  friend class cache_folder;
  cache_writer() = default;
  error failed(int why);
  result<void> write_all(int fd, std::span<const std::byte> data, std::uint64_t at);
  result<void> end_block();

  int fd_ = -1;
  int sums_fd_ = -1;
  std::string path_;  // of the complete entry
  std::string url_;
  object_version version_;
  std::uint64_t size_ = 0;
  std::uint32_t block_sum_ = 0;
  std::vector<std::uint32_t> sums_;
  bool given_up_ = false;
};

// Thread-safe, as far as the kernel is.
class cache_folder {
 public:
  explicit cache_folder(cache_options options) : options_(std::move(options)) {}

  const cache_options& options() const { return options_; }
  // Makes the folder, with mode 0700. Fails where it belongs to another, or cannot be used.
  result<void> prepare() const;
  // The complete entry, marked as used; null where there is none or where it is damaged (it is
  // removed).
  std::unique_ptr<cached_file> open(const std::string& name) const;
  // Null when another process or reader fills it. Makes room for it; fails with too_large where
  // there is none to be made, with io_failed where nothing can be written.
  result<std::unique_ptr<cache_writer>> fill(const std::string& name, const std::string& url,
                                             const object_version& version) const;
  // A descriptor of what is filled so far; -1 where there is nothing.
  int open_part(const std::string& name) const;
  void remove(const std::string& name) const;

  // The last version of a URL that was seen, for when its server cannot be reached.
  void remember(const std::string& url, const object_version& version) const;
  std::optional<object_version> remembered(const std::string& url) const;

  std::vector<cache_entry> entries() const;
  // Removes those used least recently until all are within `most_bytes` and `least_free`, with
  // `more` to come; none that is open. How many bytes were freed.
  std::uint64_t evict(std::uint64_t more) const;
  // Removes all that nobody reads or fills. How many bytes were freed.
  std::uint64_t clean() const;
  // Of a complete entry; does not mark it as used.
  std::string url_of(const std::string& name) const;

 private:
  std::string path_of(const std::string& name) const { return options_.folder + "/" + name; }
  void keep_prefix(cache_writer& writer) const;
  bool has_room(std::uint64_t more) const;
  bool remove_if_unused(const cache_entry& entry) const;
  std::unique_ptr<cached_file> look_at(const std::string& name) const;

  cache_options options_;
};

}  // namespace millrace
