#include "io/names/compression.h"

#include <algorithm>

#include "engine/base/words.h"

namespace millrace {
namespace {

bool is_short_archive(std::string_view lower, const known_compression& c) {
  return !c.archive.empty() && lower.ends_with(c.archive);
}

// The characters of the longest ending.
constexpr std::size_t longest = [] {
  std::size_t most = 0;
  for (const auto& c : known_compressions)
    most = std::max({most, c.ending.size(), c.archive.size()});
  return most;
}();

}  // namespace

compression compression_of(std::string_view first) {
  const auto is_it = [&](const auto& c) { return first.starts_with(c.magic); };
  const auto* const found = std::ranges::find_if(known_compressions, is_it);
  return found == known_compressions.end() ? compression::none : found->how;
}

compression compression_named(std::string_view url) {
  // A list may have a million names: the end alone is looked at.
  const std::string_view name = url.substr(0, std::min(url.find('?'), url.find('#')));
  const std::string lower = lowered(name.substr(name.size() - std::min(name.size(), longest)));
  if (lower.ends_with(".tar")) return compression::none;
  const auto is_it = [&](const auto& c) {
    return lower.ends_with(c.ending) || is_short_archive(lower, c);
  };
  const auto* const found = std::ranges::find_if(known_compressions, is_it);
  return found == known_compressions.end() ? compression::none : found->how;
}

bool is_archive_name(std::string_view name) {
  constexpr std::string_view tar = ".tar";
  const std::string lower = lowered(name);
  const auto is_it = [&](const auto& c) {
    if (is_short_archive(lower, c)) return true;
    const std::string_view packed = lower;
    return packed.ends_with(c.ending) &&
           packed.substr(0, packed.size() - c.ending.size()).ends_with(tar);
  };
  return lower.ends_with(tar) || std::ranges::any_of(known_compressions, is_it);
}

std::size_t usual_window(compression how) {
  const auto* const found = std::ranges::find(known_compressions, how, &known_compression::how);
  return found == known_compressions.end() ? 0 : static_cast<std::size_t>(found->window);
}

}  // namespace millrace
