#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/result.h"
#include "io/names/compression.h"

namespace millrace {

// Follows a compressed stream from block to block or frame to frame, and reports how much memory
// its decoder takes for what the stream claims there: a dictionary, a window, a block. Follows
// concatenated streams too, and zero bytes after each: the decoder sees neither the padding nor
// bytes that begin no stream. For the streams that unpack() reads by libarchive. One thread.
class stream_windows {
 public:
  virtual ~stream_windows() = default;
  // The memory that every decoder takes, and that needed() leaves out.
  static constexpr std::uint64_t free_bytes = 1 << 20;

  // Takes the next bytes, in pieces of any size. Returns how many of them may go to the decoder
  // now; feed the rest again. If it returns 0, first act on padding(), failed(), needed() and
  // lacks().
  std::size_t feed(std::span<const std::byte> input);
  // After feed(): the next bytes, this many, are padding, which can be dropped.
  std::size_t padding() const { return padding_; }
  // After feed(): if not 0, the next bytes begin a header, and this many of them must be fed in one
  // piece.
  std::size_t lacks() const { return lacks_; }
  // The bytes needed for everything that was fed.
  std::uint64_t needed() const { return needed_; }
  // Ends the input with `rest`, which is empty or an incomplete header. Sets failed() if the input
  // ends within a stream, or with bytes that begin none.
  void end(std::string_view rest);
  // Set if the decoder cannot read the stream (bad_archive, truncated, too_large). Bytes that went
  // to the decoder before are valid as far as was checked.
  const std::optional<error>& failed() const { return failed_; }

 protected:
  explicit stream_windows(compression how) : magic_(magic_of(how)) {}
  // Expects `size` bytes for on_bytes() after skipping `skipped`. 0: no more bytes are examined.
  void expect(std::size_t size, std::uint64_t skipped = 0);
  // The same for the first bytes of a stream, which zeros may precede.
  void expect_stream(std::size_t size, std::uint64_t skipped = 0);
  // The expected bytes may be missing.
  void may_end() { may_end_ = true; }
  void need(std::uint64_t bytes);
  void fail(std::string what);
  void fail(error why);
  virtual void on_bytes(std::string_view got) = 0;

 private:
  const std::string_view magic_;  // the first bytes of a stream
  std::uint64_t needed_ = 0;
  std::optional<error> failed_;
  std::size_t expected_ = 0;
  std::uint64_t to_skip_ = 0;
  bool may_end_ = false;
  bool is_between_ = false;    // between streams
  std::size_t looked_at_ = 0;  // of the next piece, when memory had to be taken first
  std::size_t padding_ = 0;
  std::size_t lacks_ = 0;
};

}  // namespace millrace
