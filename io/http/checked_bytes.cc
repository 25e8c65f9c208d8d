#include "io/http/checked_bytes.h"

#include <algorithm>
#include <string>

namespace millrace {

void checked_bytes::put(bytes piece, std::optional<std::uint64_t> total) {
  check_.add(piece.span());
  came_ += piece.size();
  held_.push_back(std::move(piece));
  const std::uint64_t all = std::max(total.value_or(came_), came_);
  if (all <= small_bytes_ && !given_any_) return;
  // If the length is unknown, this may be the end.
  const std::uint64_t to_come = total ? all - came_ : 0;
  hold_copy(end_bytes - std::min(end_bytes, to_come));
}

// Withholds no more than the last `size` bytes.
void checked_bytes::hold_copy(std::uint64_t size) {
  std::uint64_t held = 0;
  for (const bytes& piece : held_) held += piece.size();
  std::uint64_t goes = held - std::min(held, size);
  while (goes > 0) {
    bytes& first = held_.front();
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(goes, first.size()));
    free_.push_back(first.slice(0, n));
    first = first.slice(n);
    if (first.empty()) held_.pop_front();
    goes -= n;
    given_any_ = true;
  }
  std::string end;
  for (const bytes& piece : held_) end += piece.text();
  held_.clear();
  if (!end.empty()) held_.push_back(owned_bytes(std::move(end)));
}

bytes checked_bytes::take() {
  if (free_.empty()) return {};
  bytes first = std::move(free_.front());
  free_.pop_front();
  return first;
}

result<void> checked_bytes::finish() {
  auto right = check_.finish();
  if (right) std::ranges::move(held_, std::back_inserter(free_));
  held_.clear();
  return right;
}

}  // namespace millrace
