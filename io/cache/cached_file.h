#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/cache/cache_file.h"
#include "io/http/transfer.h"

namespace millrace {

inline constexpr std::size_t cache_block_bytes = 1 << 20;

// The tail of a complete entry, after the object's bytes (cache_folder.h).
std::string cache_tail(const std::vector<std::uint32_t>& sums, const std::string& url,
                       const object_version& version);

// The tail's length. Pure.
std::uint64_t cache_tail_bytes(const std::string& url, const object_version& version);

// An open file of a complete entry. It is not evicted while it is open, and its bytes can be read
// even where it has lost its name.
class cached_file {
 public:
  // Makes one of an open file; null where its tail is not that of a whole entry. The blocks are
  // checked one by one, when they are read. Blocks.
  static std::unique_ptr<cached_file> of(held_file file);

  // A path by which the file can be opened again, whatever has become of its name.
  std::string path() const;
  std::uint64_t bytes() const { return bytes_; }
  const std::string& url() const { return url_; }
  // The name under which the version of its URL is kept (seen_name()).
  const std::string& seen() const { return seen_; }
  // Whether the whole object had this digest when it was written.
  bool has_digest(const expected_digest& digest) const;
  // Whether block `index`, or what the object has of it, had this crc32c when it was written.
  bool has_sum(std::uint64_t index, std::uint32_t sum) const {
    return index < sums_.size() && sums_[index] == sum;
  }
  // Of the first `blocks` blocks, for a digest of that kind; nullopt where they are not what was
  // written. Blocks.
  std::optional<digest_check> digest_of(std::uint64_t blocks, const expected_digest& kind) const;
  std::uint64_t blocks() const { return sums_.size(); }
  int fd() const { return file_.fd(); }

 private:
  explicit cached_file(held_file file) : file_(std::move(file)) {}
  bool read_tail();

  held_file file_;
  std::uint64_t bytes_ = 0;
  std::string url_;
  std::string seen_;
  std::string digest_;  // in hexadecimal, of an algorithm that its length tells; empty: not known
  std::vector<std::uint32_t> sums_;
};

}  // namespace millrace
