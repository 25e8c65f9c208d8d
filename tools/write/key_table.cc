#include "tools/write/key_table.h"

#include <utility>

#include "pipeline/state/state.h"

namespace millrace {

std::optional<std::uint32_t> key_table::first_shard(std::string_view key, std::uint32_t shard) {
  constexpr std::uint64_t other_basis = 0x9e3779b97f4a7c15U;
  const std::uint64_t high = fingerprint(key);
  const auto low = static_cast<std::uint32_t>(fingerprint(key, other_basis) >> 32);
  if (size_ >= entries_.size() / 4 * 3 && !is_full_) is_full_ = !grow();
  if (entries_.empty()) return std::nullopt;
  entry& e = place_of(high, low);
  if (e.shard != free_place) return e.shard;
  if (is_full_) return std::nullopt;
  e = {high, low, shard};
  ++size_;
  return std::nullopt;
}

// The place where it is, or would be. A quarter of the places is free.
key_table::entry& key_table::place_of(std::uint64_t high, std::uint32_t low) {
  for (std::size_t at = (high ^ high >> 32) & (entries_.size() - 1);;
       at = (at + 1) & (entries_.size() - 1)) {
    entry& e = entries_[at];
    if (e.shard == free_place || (e.high == high && e.low == low)) return e;
  }
}

bool key_table::grow() {
  constexpr std::size_t least = 1024;
  const std::size_t wanted = entries_.empty() ? least : entries_.size() * 2;
  if ((wanted + entries_.size()) * sizeof(entry) > most_bytes_) return false;
  const auto before = std::exchange(entries_, std::vector<entry>(wanted));
  for (const entry& e : before) {
    if (e.shard != free_place) place_of(e.high, e.low) = e;
  }
  return true;
}

}  // namespace millrace
