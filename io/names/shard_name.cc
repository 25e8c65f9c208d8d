#include "io/names/shard_name.h"

#include <algorithm>

#include "engine/written_file.h"
#include "io/names/compression.h"

namespace millrace {
namespace {

// Takes the first name off the path, with the '/' after it, and returns the name.
std::string_view take_name(std::string_view& path) {
  const std::string_view name = path.substr(0, path.find('/'));
  path.remove_prefix(std::min(name.size() + 1, path.size()));
  return name;
}

bool is_hidden(std::string_view name) {
  return name.starts_with('.');
}

// Whether one name, without '/', matches.
bool fits(std::string_view name, std::string_view pattern) {
  // Whenever the rest does not match, the last star takes one more character.
  std::size_t n = 0;
  std::size_t p = 0;
  std::size_t star = pattern.npos;
  std::size_t taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != pattern.npos) {
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool is_described(std::string_view name, std::string_view pattern) {
  if (name == pattern) return true;
  if (is_hidden(name) && !is_hidden(pattern)) return false;
  return !is_partial_file_name(name) && fits(name, pattern);
}

}  // namespace

bool is_shard_name(std::string_view path) {
  if (!is_archive_name(path)) return false;
  while (!path.empty()) {
    if (is_hidden(take_name(path))) return false;
  }
  return true;
}

bool matches_pattern(std::string_view path, std::string_view pattern) {
  if (std::ranges::count(path, '/') != std::ranges::count(pattern, '/')) return false;
  while (!path.empty() || !pattern.empty()) {
    if (!is_described(take_name(path), take_name(pattern))) return false;
  }
  return true;
}

}  // namespace millrace
