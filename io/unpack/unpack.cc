#include "io/unpack/unpack.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/units.h"
#include "io/unpack/decoders.h"

namespace millrace {
namespace {

// A small file may grow without limit.
constexpr std::uint64_t free_growth_bytes = 64_MiB;

class unpacking_source final : public byte_source {
 public:
  unpacking_source(const source_context& context, const decoder& by, unpack_memory memory,
                   packed what, std::uint64_t offset)
      : most_growth_(static_cast<std::uint64_t>(context.options.max_expansion)),
        memory_(std::move(memory)),
        what_(std::move(what)),
        to_discard_(offset),
        taken_(what_.first.size()),
        windows_(by.windows()),
        unpacker_(by.make(context, by.filter)) {
    if (memory_.held) *memory_.held += room_for_pieces;
  }
  ~unpacking_source() override {
    if (memory_.held) *memory_.held -= charged_ + room_for_pieces;
  }
  unpacking_source(const unpacking_source&) = delete;
  unpacking_source& operator=(const unpacking_source&) = delete;

  awaitable<result<bytes>> read() override {
    for (;;) {
      if (wants_input_) {
        if (auto fed = co_await feed(); !fed) co_return fed.error();
      }
      auto piece = co_await memory_.pieces->acquire(unpacked_piece_bytes);
      if (!piece) co_return piece.error();
      const auto got = co_await unpacker_->step(unpacker_, *piece);
      if (!got) co_return described(cause_of(got.error()));
      wants_input_ = got->wants_input;
      given_ += got->written;
      if (given_ > free_growth_bytes && given_ / most_growth_ > taken_) co_return too_large();
      bytes out = std::move(*piece).freeze(got->written);
      const auto unwanted =
          static_cast<std::size_t>(std::min<std::uint64_t>(to_discard_, out.size()));
      to_discard_ -= unwanted;
      if (unwanted < out.size()) co_return out.slice(unwanted);
      if (got->wants_input || got->written > 0) continue;
      if (windows_ && windows_->failed()) co_return described(*windows_->failed());
      co_return bytes();
    }
  }

 private:
  // Feeds the unpacker its next input: the bytes up to the next window whose memory must be taken,
  // or with it. Bytes that the decoder must not see end the input, so that everything before them
  // is delivered.
  awaitable<result<void>> feed() {
    std::size_t fits = 0;
    while (fits == 0 && !(windows_ && windows_->failed())) {
      if (what_.first.empty() && !has_ended_) {
        auto input = co_await next_input();
        if (!input) co_return input.error();
        what_.first = std::move(*input);
      }
      fits = what_.first.size();
      if (has_ended_) {
        if (windows_) windows_->end(what_.first.text());
        fits = 0;
        break;
      }
      if (!windows_) break;
      if (wanted() > charged_) {
        if (auto taken = co_await take_window(); !taken) co_return described(taken.error());
      }
      fits = windows_->feed(what_.first.span());
      if (windows_->padding() > 0) what_.first = what_.first.slice(windows_->padding());
      if (windows_->lacks() == 0) continue;
      if (auto whole = co_await join(windows_->lacks()); !whole) co_return whole.error();
    }
    bytes& input = what_.first;
    unpacker_->feed(input.slice(0, fits));
    input = fits < input.size() ? input.slice(fits) : bytes();
    wants_input_ = false;
    co_return result<void>();
  }

  awaitable<result<bytes>> next_input() {
    if (!after_.empty()) co_return std::exchange(after_, {});
    auto input = co_await what_.source->read();
    if (!input) co_return input.error();
    taken_ += input->size();
    has_ended_ = input->empty();
    co_return std::move(*input);
  }

  // Joins a header that is spread over several pieces: `size` bytes in one, or all that are left.
  awaitable<result<void>> join(std::size_t size) {
    std::string whole(what_.first.text());
    while (whole.size() < size && !has_ended_) {
      what_.first = bytes();  // the source may have memory for only one piece
      auto more = co_await next_input();
      if (!more) co_return more.error();
      const std::size_t taken = std::min(size - whole.size(), more->size());
      whole += more->text().substr(0, taken);
      if (taken < more->size()) after_ = more->slice(taken);
    }
    what_.first = owned_bytes(std::move(whole));
    co_return result<void>();
  }

  // The cause of a decoder's error: if its input was ended early, it reports a truncated stream.
  error cause_of(const error& why) const {
    const bool was_ended = windows_ && windows_->failed() && why.kind() == errc::truncated;
    return was_ended ? *windows_->failed() : why;
  }

  // Bytes for the decoder: what the stream claims, and at its start at least the room that it was
  // given.
  std::uint64_t wanted() const {
    const std::size_t room = memory_.at_first && given_ == 0 ? *memory_.at_first : 0;
    return std::max<std::uint64_t>(windows_->needed(), std::min(room, memory_.windows->limit()));
  }

  // Takes the memory that the decoder will need, before the decoder sees the claim.
  awaitable<result<void>> take_window() {
    const std::uint64_t needed = wanted();
    const bool one_share = memory_.windows == memory_.pieces;
    const std::size_t held = memory_.held ? *memory_.held : one_share ? room_for_pieces : 0;
    const std::size_t all = memory_.windows->limit();
    const std::size_t limit = all - std::min(all, held) + (memory_.held ? charged_ : 0);
    if (needed > limit) {
      lacks_room_ = needed <= largest_window;
      co_return window_too_large(needed, limit);
    }
    const std::size_t more = static_cast<std::size_t>(needed) - charged_;
    // Several decoders that hold a window, or hold unpacked bytes, and wait for more would wait for
    // each other.
    if ((charged_ == 0 && given_ == 0) || one_share) {
      auto reserved = co_await memory_.windows->reserve(more);
      if (!reserved) co_return reserved.error();
      window_.push_back(std::move(*reserved));
    } else {
      grown_.push_back(memory_.windows->try_acquire(more));
      if (!grown_.back()) {
        // Doubles, so that a stream that keeps growing is restarted a few times, not at each step.
        if (memory_.at_first) *memory_.at_first = std::max(charged_ + more, 2 * charged_);
        co_return no_room_to_grow(needed);
      }
    }
    if (memory_.held) *memory_.held += more;
    charged_ += more;
    co_return result<void>();
  }

  static error window_too_large(std::uint64_t needed, std::size_t limit) {
    return error(errc::too_large,
                 fmt::format("unpacking it needs {} of memory, as the compressed stream claims; "
                             "the budget allows at most {}",
                             format_bytes(needed + stream_windows::free_bytes),
                             format_bytes(limit + stream_windows::free_bytes)))
        .hint(
            "raise engine_options.memory_bytes (MILLRACE_MEMORY), read fewer shards at once, or "
            "compress it with a smaller dictionary or window; name it by its compression "
            "(.tar.xz, .tar.zst), since memory is set aside by names");
  }
  static error no_room_to_grow(std::uint64_t needed) {
    return error(errc::no_memory,
                 fmt::format("a later part of the compressed stream needs {} of memory to unpack, "
                             "which other shards have in use",
                             format_bytes(needed + stream_windows::free_bytes)))
        .hint("raise engine_options.memory_bytes (MILLRACE_MEMORY)");
  }
  // Faults of the shard are skippable; a budget without room for it is not.
  error described(error why) const {
    const bool lacks_memory = why.kind() == errc::no_memory || lacks_room_;
    return why.at(what_.url).offset(given_).skippable(!lacks_memory);
  }
  error too_large() const {
    return described(
        error(errc::too_large, fmt::format("{} compressed bytes unpack to more than {}", taken_,
                                           format_bytes(given_)))
            .hint(
                "raise source_options.max_expansion (MILLRACE_MAX_EXPANSION) if this is expected"));
  }

  std::uint64_t most_growth_;
  unpack_memory memory_;
  packed what_;             // `first`: the input that the unpacker has not yet received
  bytes after_;             // the bytes read after it
  bool has_ended_ = false;  // the input
  std::uint64_t to_discard_;
  std::uint64_t taken_;
  std::uint64_t given_ = 0;
  bool wants_input_ = true;
  bool lacks_room_ = false;
  std::unique_ptr<stream_windows> windows_;
  std::vector<memory_reservation> window_;
  std::vector<buffer> grown_;  // the same, taken without waiting; nothing is written there
  std::size_t charged_ = 0;
  // Shared with the step under way, which may outlive an abandoned source.
  std::shared_ptr<unpacker> unpacker_;
};

// The rest of a piece, then the source after it.
class rest_source final : public byte_source {
 public:
  rest_source(bytes rest, std::unique_ptr<byte_source> after)
      : rest_(std::move(rest)), after_(std::move(after)) {}

  awaitable<result<bytes>> read() override {
    if (!rest_.empty()) co_return std::exchange(rest_, {});
    co_return co_await after_->read();
  }

 private:
  bytes rest_;
  std::unique_ptr<byte_source> after_;
};

}  // namespace

awaitable<result<begun_source>> begin_reading(std::unique_ptr<byte_source> source) {
  auto first = co_await source->read();
  if (!first) co_return first.error();
  if (first->size() < magic_bytes && !first->empty()) {  // a cut, or a pipe's short write
    std::string some(first->text());
    while (some.size() < magic_bytes) {
      first = bytes();  // the source may have memory for only one piece
      first = co_await source->read();
      if (!first) co_return first.error();
      if (first->empty()) break;
      const std::size_t taken = std::min(first->size(), magic_bytes - some.size());
      some += first->text().substr(0, taken);
      if (taken < first->size()) {
        source = std::make_unique<rest_source>(first->slice(taken), std::move(source));
      }
    }
    first = owned_bytes(std::move(some));
  }
  const compression how = compression_of(first->text());
  co_return begun_source{how, std::move(source), std::move(*first)};
}

std::size_t memory_for_windows(std::span<const std::string> urls) {
  std::size_t most = 0;
  for (const std::string& url : urls) {
    most = std::max(most, usual_window(compression_named(url)));
    if (most == largest_window) break;
  }
  return most;
}

std::unique_ptr<byte_source> unpack(const source_context& context, unpack_memory memory,
                                    packed what, std::uint64_t offset) {
  const decoder& by = decoder_of(what.how);
  return std::make_unique<unpacking_source>(context, by, std::move(memory), std::move(what),
                                            offset);
}

}  // namespace millrace
