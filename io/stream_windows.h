#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/result.h"
#include "io/unpack.h"

namespace millrace {

// Follows a compressed stream from one block or frame to the next, and says how much memory its
// decoder takes for what the stream claims there: a dictionary, a window, a block. Concatenated
// streams are followed as well. Of the streams that unpack() reads by libarchive. One thread.
class stream_windows {
 public:
  virtual ~stream_windows() = default;
  // Null for compressions whose decoders take less than `free_bytes` whatever the stream says.
  static std::unique_ptr<stream_windows> of(compression how);
  // What needed() leaves out: what every decoder takes.
  static constexpr std::uint64_t free_bytes = 1 << 20;

  // The next bytes, in pieces of any size. Gives how many of them may go to the decoder now: fewer
  // than there are where needed() has grown, or failed() is set. The rest is to be given again.
  std::size_t feed(std::span<const std::byte> input);
  // Bytes, for all that was fed.
  std::uint64_t needed() const { return needed_; }
  // Where the stream is not what its decoder reads (bad_archive, too_large).
  const std::optional<error>& failed() const { return failed_; }

 protected:
  // What comes next, after `skipped` bytes: `size` bytes for on_bytes(). 0: nothing more is looked
  // at.
  void expect(std::size_t size, std::uint64_t skipped = 0);
  void need(std::uint64_t bytes);
  void fail(std::string what);
  void fail(error why);
  virtual void on_bytes(std::string_view got) = 0;

 private:
  std::uint64_t needed_ = 0;
  std::optional<error> failed_;
  std::size_t expected_ = 0;
  std::uint64_t to_skip_ = 0;
  std::string got_;
  bool has_seen_first_ = false;  // the first byte of the next piece, which was held back
};

}  // namespace millrace
