#include "pipeline/state/shard_head.h"

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

}  // namespace millrace
