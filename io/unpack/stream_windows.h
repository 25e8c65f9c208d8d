#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/result.h"
#include "io/names/compression.h"

namespace millrace {

// Follows a compressed stream from one block or frame to the next, and says how much memory its
// decoder takes for what the stream claims there: a dictionary, a window, a block. Concatenated
// streams, and zero bytes behind each, are followed as well: the decoder sees neither the padding
// nor bytes that begin no stream. Of the streams that unpack() reads by libarchive. One thread.
class stream_windows {
 public:
  virtual ~stream_windows() = default;
  // Null for compressions whose decoders take less than `free_bytes` whatever the stream says.
  static std::unique_ptr<stream_windows> of(compression how);
  // What needed() leaves out: what every decoder takes.
  static constexpr std::uint64_t free_bytes = 1 << 20;

  // The next bytes, in pieces of any size. Gives how many of them may go to the decoder now. The
  // rest is to be given again, where this is 0 after what padding(), failed(), needed() and lacks()
  // say has been done.
  std::size_t feed(std::span<const std::byte> input);
  // After feed(): so many bytes that come next are padding, which nobody needs.
  std::size_t padding() const { return padding_; }
  // After feed(): not 0 where the bytes that come next are the begin of a header that is to be
  // given whole, this many bytes of it.
  std::size_t lacks() const { return lacks_; }
  // Bytes, for all that was fed.
  std::uint64_t needed() const { return needed_; }
  // The input ends with `rest`, which is empty or a header that is not whole. Sets failed() where
  // it ends within a stream, or with what begins none.
  void end(std::string_view rest);
  // Where the stream is not what its decoder reads (bad_archive, truncated, too_large): what went
  // to the decoder before is sound as far as this saw.
  const std::optional<error>& failed() const { return failed_; }

 protected:
  // `magic`: what streams begin with.
  explicit stream_windows(std::string_view magic) : magic_(magic) {}
  // What comes next, after `skipped` bytes: `size` bytes for on_bytes(). 0: nothing more is looked
  // at.
  void expect(std::size_t size, std::uint64_t skipped = 0);
  // The same, of a stream's first bytes, with zeros in front of them.
  void expect_stream(std::size_t size, std::uint64_t skipped = 0);
  // What is expected need not come.
  void may_end() { may_end_ = true; }
  void need(std::uint64_t bytes);
  void fail(std::string what);
  void fail(error why);
  virtual void on_bytes(std::string_view got) = 0;

 private:
  const std::string_view magic_;
  std::uint64_t needed_ = 0;
  std::optional<error> failed_;
  std::size_t expected_ = 0;
  std::uint64_t to_skip_ = 0;
  bool may_end_ = false;
  bool is_between_ = false;    // streams
  std::size_t looked_at_ = 0;  // of the next piece, whose memory had to be taken first
  std::size_t padding_ = 0;
  std::size_t lacks_ = 0;
};

}  // namespace millrace
