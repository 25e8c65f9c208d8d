#include "pipeline/formats/same_shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "engine/base/units.h"
#include "io/hashes.h"
#include "pipeline/formats/tar_parser.h"
#include "pipeline/samples/sample_name.h"
#include "pipeline/shards/shard_index.h"

namespace millrace {
namespace {

constexpr std::uint64_t header_bytes = 8_KiB;  // of one member, including extension headers
constexpr int most_members = 64;               // of a sample; larger samples are not checked
// Reading through more bytes than this costs more than a new request.
constexpr std::uint64_t most_read_through = 4_MiB;

struct header {
  bool is_damaged = false;                   // no valid header where one should be
  std::optional<tar_parser::member> member;  // nullopt: unknown, or nothing follows
  std::uint64_t next = 0;                    // where the next header begins
};

// Reads the headers from byte `from` on, including one at `to`.
class header_reader {
 public:
  header_reader(lane_context& lane, std::string url, std::uint64_t from, std::uint64_t to)
      : lane_(lane), url_(std::move(url)), end_(to + header_bytes), parser_(from) {}

  // Fails only if the run is stopped.
  awaitable<result<header>> next() {
    header out;
    for (;;) {
      if (!source_) {
        source_context context = lane_.source();
        context.version = version_ = std::make_shared<opened_version>();
        auto opened =
            co_await lane_.run.sources.open(std::move(context), url_, {parser_.offset(), end_});
        if (!opened && opened.error().kind() == errc::stopped) co_return opened.error();
        if (!opened) co_return out;
        source_ = std::move(*opened);
      }
      const auto step = parser_.step(input_);
      out.is_damaged = !step;
      if (!step || *step == tar_parser::event::archive_end) co_return out;
      if (*step == tar_parser::event::header) break;
      if (*step != tar_parser::event::need_input) continue;
      piece_ = bytes();
      auto more = co_await source_->read();
      if (!more && more.error().kind() == errc::stopped) co_return more.error();
      if (!more || more->empty()) co_return out;
      piece_ = std::move(*more);
      input_ = piece_.span();
    }
    out.member = parser_.current();
    out.next = parser_.offset() + round_up(out.member->size, tar_parser::block_size);
    if (out.member->size > most_read_through && !version_->ignores_ranges) {
      source_.reset();
      input_ = {};
      piece_ = bytes();
      parser_ = tar_parser(out.next);
    }
    co_return out;
  }

 private:
  lane_context& lane_;
  std::string url_;
  std::uint64_t end_;
  tar_parser parser_;
  std::shared_ptr<opened_version> version_;  // of the last source opened; not compared
  std::unique_ptr<byte_source> source_;
  bytes piece_;
  std::span<const std::byte> input_;
};

enum class indexed_sample { same, other, damaged };

// Whether the bytes from `from`, where a sample begins, to `to` are exactly that sample: another
// one begins at `to`, or none if the sample `is_last`.
awaitable<result<indexed_sample>> look_at(lane_context& lane, const untar_options& how,
                                          std::string url, std::uint64_t from, std::uint64_t to,
                                          bool is_last) {
  header_reader headers(lane, std::move(url), from, to);
  std::optional<std::string> key;
  for (int i = 0; i < most_members; ++i) {
    if (from > to) co_return indexed_sample::other;
    const auto found = co_await headers.next();
    if (!found) co_return found.error();
    if (found->is_damaged && i == 0) co_return indexed_sample::damaged;
    if (!found->member) break;
    const tar_parser::member& member = *found->member;
    const bool is_at_end = from == to;
    from = found->next;
    const bool is_file = member.is_file() && !is_meta_name(member.name);
    if (!is_file && is_at_end) break;
    if (!is_file) continue;
    const std::string name = how.rename ? how.rename(member.name) : member.name;
    const auto split = split_name(name);
    const bool goes_on = key && extension_after(*key, name);
    if (is_at_end)
      co_return goes_on || (is_last && split) ? indexed_sample::other : indexed_sample::same;
    if (goes_on || !split) continue;
    if (key) co_return indexed_sample::other;
    key = split->key;
  }
  co_return indexed_sample::same;
}

std::uint64_t byte_of(std::uint32_t block) {
  return static_cast<std::uint64_t>(block * shard_index::block_bytes);
}

}  // namespace

awaitable<result<void>> check_length(source_context context, const source_registry& sources,
                                     std::string url, std::int64_t bytes) {
  if (bytes <= 0) co_return result<void>();
  const auto last = static_cast<std::uint64_t>(bytes - 1);
  auto source = co_await sources.open(std::move(context), url, {last, last + 2});
  error why = source ? error() : source.error();
  std::size_t found = 0;
  while (source) {
    const auto piece = co_await (*source)->read();
    if (!piece) why = piece.error();
    if (!piece || piece->empty()) break;
    found += piece->size();
  }
  if (why.kind() == errc::stopped) co_return why;
  if (found <= 1) co_return result<void>();  // a shorter one was cut, which its reader reports
  co_return error(errc::integrity,
                  fmt::format("the shard has more than the {} bytes that the index says", bytes))
      .at(url)
      .hint(std::string("fetch the shard again; if it was rewritten, ") + index_again_hint)
      .skippable();
}

awaitable<result<void>> check_bounds(lane_context& lane, const untar_options& how, shard_ref part) {
  if (!lane.index) co_return result<void>();
  const auto shard = static_cast<std::size_t>(part.shard);
  const auto& indexed = lane.index->shards[shard];
  const auto& blocks = indexed.blocks;
  const std::string url = (*lane.shards)[shard];
  auto whole = co_await check_length(lane.source(), lane.run.sources, url, indexed.bytes);
  if (!whole) co_return whole.error();
  for (const std::int64_t bound : {part.begin, part.end}) {
    const auto at = std::ranges::lower_bound(blocks, bound / shard_index::block_bytes);
    // A bound from a saved state is not in the index.
    const bool is_bound =
        at != blocks.begin() && at != blocks.end() && *at * shard_index::block_bytes == bound;
    if (!is_bound) continue;
    const bool is_last = std::next(at) == blocks.end();
    const std::uint64_t from = byte_of(*std::prev(at));
    auto same = co_await look_at(lane, how, url, from, byte_of(*at), is_last);
    if (!same) co_return same.error();
    if (*same == indexed_sample::damaged && std::prev(at) != blocks.begin()) {
      // If the sample before that one ends there, this is damage; else it is another shard.
      same = co_await look_at(lane, how, url, byte_of(*std::prev(at, 2)), from, false);
      if (!same) co_return same.error();
      if (*same == indexed_sample::damaged) same = indexed_sample::other;
    }
    if (*same != indexed_sample::other) continue;
    co_return error(errc::integrity,
                    fmt::format("the index has a sample from byte {} to {}, the shard does not",
                                from, byte_of(*at)))
        .at(url)
        .offset(from)
        .hint(how.rename ? "an index goes by the names in the archive: rename only without an index"
                         : index_again_hint)
        .skippable();
  }
  co_return result<void>();
}

awaitable<result<void>> check_head(lane_context& lane, shard_head expected) {
  const std::string url = (*lane.shards)[static_cast<std::size_t>(expected.shard)];
  const auto from = static_cast<std::uint64_t>(expected.begin);
  const auto end = from + static_cast<std::uint64_t>(expected.bytes);
  auto source = co_await lane.run.sources.open(lane.source(), url, {.begin = from, .end = end});
  if (!source) co_return source.error();
  shard_head found{.shard = expected.shard, .begin = expected.begin};
  while (found.bytes < expected.bytes) {
    const auto more = co_await (*source)->read();
    if (!more) co_return more.error();
    if (more->empty()) break;
    const auto left = static_cast<std::size_t>(expected.bytes - found.bytes);
    const auto some = more->span().first(std::min(left, more->size()));
    found.crc = crc32c(some, found.crc);
    found.bytes += std::ssize(some);
  }
  if (found == expected) co_return result<void>();
  co_return error(errc::changed, "the first bytes of the shard have changed")
      .at(url)
      .offset(from)
      .skippable()
      .hint(
          "the shard was replaced since the state was saved: put the old one back, or start "
          "without the state");
}

}  // namespace millrace
