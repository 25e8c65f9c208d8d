#include "pipeline/state/count_record.h"

#include <iterator>
#include <span>

namespace millrace {
namespace {

constexpr std::size_t numbers_before_ends = 9;  // the last is the number of ends
constexpr std::size_t numbers_of_items = 2;

// Converts numbers to the current form. Older ones lack `ends_in_front_again`.
state::record completed(state::record r) {
  constexpr std::size_t added = 7;
  const bool is_older =
      r.size() >= numbers_before_ends - 1 && r.size() % 2 == (numbers_before_ends - 1) % 2;
  if (is_older) r.insert(r.begin() + added, 0);
  return r;
}

}  // namespace

std::optional<count_record> count_record::in(const state::record& saved) {
  const state::record r = completed(saved);
  if (r.size() < numbers_before_ends) return std::nullopt;
  const std::int64_t ends = r[numbers_before_ends - 1];
  auto rest = std::span(r).subspan(numbers_before_ends);
  if (ends < 0 || ends > std::ssize(rest) / 2) return std::nullopt;
  count_record out{.value = r[0],
                   .samples_in_front = r[1],
                   .ends_in_front = r[2],
                   .own_ends_in_front = r[3],
                   .ends_again = r[4],
                   .last_again = {r[5], r[6]},
                   .ends_in_front_again = r[7],
                   .of_items = std::nullopt,
                   .again = std::nullopt};
  for (std::int64_t i = 0; i < ends; ++i, rest = rest.subspan(2)) {
    out.ends.emplace_back(rest[0], rest[1]);
  }
  if (rest.empty()) return out;
  if (rest.size() < numbers_of_items) return std::nullopt;
  out.of_items = items{.samples = rest[0], .length = rest[1]};
  rest = rest.subspan(numbers_of_items);
  if (!rest.empty()) out.again = state::record(rest.begin(), rest.end());
  return out;
}

state::record count_record::of() const {
  state::record r{value,           samples_in_front, ends_in_front,     own_ends_in_front,
                  ends_again,      last_again.first, last_again.second, ends_in_front_again,
                  std::ssize(ends)};
  for (const place& p : ends) r.insert(r.end(), {p.first, p.second});
  if (of_items) r.insert(r.end(), {of_items->samples, of_items->length});
  if (of_items && again) r.insert(r.end(), again->begin(), again->end());
  return r;
}

}  // namespace millrace
