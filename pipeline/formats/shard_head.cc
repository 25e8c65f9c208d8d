#include "pipeline/formats/shard_head.h"

#include <algorithm>

#include "io/hashes.h"

namespace millrace {

void shard_head::see(std::span<const std::byte> first) {
  const auto some = first.first(std::min(first.size(), most_bytes));
  crc = crc32c(some);
  bytes = std::ssize(some);
}

void shard_head::put(state& to, const std::string& name) const {
  if (is_known()) to.put(name, {shard, begin, std::int64_t{crc}, bytes});
}

shard_head shard_head::in(const state& from, const std::string& name) {
  const auto* const r = from.find(name);
  constexpr std::size_t values = 4;
  if (r == nullptr || r->size() != values) return {};
  const shard_head said{.shard = (*r)[0],
                        .begin = (*r)[1],
                        .crc = static_cast<std::uint32_t>((*r)[2]),
                        .bytes = (*r)[3]};
  const bool makes_sense =
      said.begin >= 0 && said.bytes > 0 && said.bytes <= std::int64_t{most_bytes};
  return makes_sense ? said : shard_head();
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
  co_return error(errc::changed, "the shard begins with other bytes than before")
      .at(url)
      .offset(from)
      .skippable()
      .hint(
          "the shard was replaced since the state was saved: put the old one back, or start "
          "anew");
}

}  // namespace millrace
