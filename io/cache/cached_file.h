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

// The tail's length in bytes. Pure.
std::uint64_t cache_tail_bytes(const std::string& url, const object_version& version);

// An open complete entry. It is not evicted while it is open, and its bytes can be read even if it
// has lost its name.
class cached_file {
 public:
  // Creates one from an open file; null if its tail is not that of a complete entry. Blocks are
  // checked one by one as they are read. Blocks.
  static std::unique_ptr<cached_file> of(held_file file);

  // A path by which the file can be opened again, even if it has lost its name.
  std::string path() const;
  std::uint64_t bytes() const { return bytes_; }
  const std::string& url() const { return url_; }
  // The name under which the version of its URL is kept (seen_name()).
  const std::string& seen() const { return seen_; }
  // Whether the whole object matched this digest when it was written.
  bool has_digest(const expected_digest& digest) const;
  // Whether block `index` (the last one may be shorter) had this crc32c when it was written.
  bool has_sum(std::uint64_t index, std::uint32_t sum) const {
    return index < sums_.size() && sums_[index] == sum;
  }
  // A digest of this kind over the first `blocks` blocks; nullopt if they are not what was written.
  // Blocks.
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
  std::string digest_;  // in hexadecimal; its length shows the algorithm; empty: unknown
  std::vector<std::uint32_t> sums_;
};

}  // namespace millrace
