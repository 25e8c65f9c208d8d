#include "pipeline/formats/companion_index.h"

#include <algorithm>
#include <random>
namespace millrace {

std::uint64_t companion_index::random_seed() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}

std::optional<std::int64_t> companion_index::find(std::string_view key) const {
  const auto found = places_.find(of_key(key));
  if (found == places_.end()) return std::nullopt;
  return found->second.offset;
}

bool companion_index::add(std::string_view key, std::int64_t offset) {
  const auto [at, is_new] = places_.try_emplace(of_key(key), place{.offset = offset});
  const bool is_first = is_new || at->second.offset == offset;
  if (!is_first) ++repeated_;
  return is_first;
}

void companion_index::note_asked(std::string_view key) {
  const auto found = places_.find(of_key(key));
  if (found == places_.end() || std::exchange(found->second.is_asked, true)) return;
  ++asked_;
}

std::shared_ptr<companion_index> companion_indexes::of(const std::string& url, bool afresh) {
  const auto found = std::ranges::find_if(kept_, [&](const auto& k) { return k.first == url; });
  if (found == kept_.end()) {
    kept_.emplace_front(url, std::make_shared<companion_index>());
    if (kept_.size() > most_kept) kept_.pop_back();
  } else {
    kept_.splice(kept_.begin(), kept_, found);
    const bool is_broken = kept_.front().second->broken.has_value();
    if (afresh || is_broken) kept_.front().second = std::make_shared<companion_index>();
  }
  return kept_.front().second;
}

bool companion_indexes::make_room(std::size_t most) {
  std::size_t all = 0;
  for (const auto& [url, index] : kept_) all += index->size();
  while (all >= most && kept_.size() > 1) {
    all -= kept_.back().second->size();
    kept_.pop_back();
  }
  return all < most;
}

}  // namespace millrace
