#include "pipeline/state/skip_records.h"

#include <algorithm>
#include <iterator>
#include <span>

namespace millrace {

std::optional<skip_counts> skip_counts::in(const state::record& saved) {
  if (saved.size() != 3) return std::nullopt;
  return skip_counts{.failed = saved[0], .in_a_row = saved[1], .passed = saved[2]};
}

std::optional<lost_shards> lost_shards::in(const state::record& saved) {
  constexpr std::size_t numbers_before_lists = 5;
  constexpr std::size_t of_place = std::tuple_size_v<place>;
  if (saved.size() < numbers_before_lists) return std::nullopt;
  const std::int64_t read = saved[2];
  const std::int64_t again = saved[4];
  auto rest = std::span(saved).subspan(numbers_before_lists);
  const auto is_sound = [&](std::int64_t n) { return n >= 0 && n <= std::ssize(rest); };
  if (saved[0] < 0 || saved[1] < 0 || !is_sound(read) || !is_sound(again) ||
      read + again * std::int64_t{of_place} > std::ssize(rest)) {
    return std::nullopt;
  }
  lost_shards out{.passed_of_read = saved[0], .errors = saved[1], .pending_in_front = saved[3]};
  const auto of_read = rest.first(static_cast<std::size_t>(read));
  out.read.assign(of_read.begin(), of_read.end());
  rest = rest.subspan(of_read.size());
  for (std::int64_t i = 0; i < again; ++i, rest = rest.subspan(of_place)) {
    std::ranges::copy(rest.first(of_place), out.again.emplace_back().begin());
  }
  out.lost.assign(rest.begin(), rest.end());
  return out;
}

state::record lost_shards::of() const {
  state::record r{passed_of_read, errors, std::ssize(read), pending_in_front, std::ssize(again)};
  r.insert(r.end(), read.begin(), read.end());
  for (const place& p : again) r.insert(r.end(), p.begin(), p.end());
  r.insert(r.end(), lost.begin(), lost.end());
  return r;
}

}  // namespace millrace
