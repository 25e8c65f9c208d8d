#include "pipeline/stages/collate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

namespace millrace {
namespace {

using tuples = std::vector<tuple_of_values>;

std::string described(const tensor& t) {
  return fmt::format("{} of shape [{}]", t.type, fmt::join(t.shape, ", "));
}

error unequal(const tuple_of_values& one, const std::string& what, const tuple_of_values& other,
              const std::string& what_other) {
  return error(errc::bad_field, fmt::format("samples of one batch differ: {} of '{}', {} of '{}'",
                                            what, one.key, what_other, other.key))
      .key(other.key)
      .hint("give all samples one shape, or batch those of equal shape together (bucketed)");
}

tensor integers(const tuples& of, std::size_t place) {
  std::vector<std::int64_t> all;
  for (const auto& t : of) all.push_back(std::get<std::int64_t>(t.values[place]));
  const std::string_view raw(reinterpret_cast<const char*>(all.data()),
                             all.size() * sizeof(std::int64_t));
  return {.type = "i8", .shape = {std::ssize(all)}, .data = owned_bytes(std::string(raw))};
}

result<tensor> stacked(const tuples& of, std::size_t place) {
  const auto& first = std::get<tensor>(of.front().values[place]);
  std::string all;
  all.reserve(first.data.size() * of.size());
  for (const auto& t : of) {
    const auto& one = std::get<tensor>(t.values[place]);
    if (one.type != first.type || one.shape != first.shape) {
      return unequal(of.front(), described(first), t, described(one));
    }
    all.append(reinterpret_cast<const char*>(one.data.data()), one.data.size());
  }
  tensor out{.type = first.type, .shape = {std::ssize(of)}, .data = owned_bytes(std::move(all))};
  out.shape.insert(out.shape.end(), first.shape.begin(), first.shape.end());
  return out;
}

template <class T>
bool all_are(const tuples& of, std::size_t place) {
  return std::ranges::all_of(
      of, [&](const auto& t) { return std::holds_alternative<T>(t.values[place]); });
}

}  // namespace

result<collated_batch> collated(const group_of<tuple_of_values>& batch) {
  collated_batch out;
  const tuples& of = batch.items;
  if (of.empty()) return out;
  for (const auto& t : of) {
    if (t.values.size() != of.front().values.size()) {
      return unequal(of.front(), fmt::format("a tuple of {}", of.front().values.size()), t,
                     fmt::format("one of {}", t.values.size()));
    }
    out.keys.push_back(t.key);
    out.origins.push_back(t.where);
  }
  for (std::size_t place = 0; place < of.front().values.size(); ++place) {
    if (all_are<std::int64_t>(of, place)) {
      out.columns.emplace_back(integers(of, place));
    } else if (all_are<tensor>(of, place)) {
      auto made = stacked(of, place);
      if (!made) return made.error();
      out.columns.emplace_back(std::move(*made));
    } else {
      std::vector<value> all;
      for (const auto& t : of) all.push_back(t.values[place]);
      out.columns.emplace_back(std::move(all));
    }
  }
  return out;
}

}  // namespace millrace
