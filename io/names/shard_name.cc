#include "io/names/shard_name.h"

#include <algorithm>

#include "engine/base/words.h"
#include "engine/files/written_file.h"
#include "io/names/compression.h"

namespace millrace {
namespace {

// Takes the first name off the path, with the '/' after it, and returns the name.
std::string_view take_name(std::string_view& path) {
  const std::string_view name = path.substr(0, path.find('/'));
  path.remove_prefix(std::min(name.size() + 1, path.size()));
  return name;
}

// Removes an ending, in any case. False if the name has another one, or nothing else.
bool take_ending(std::string_view& name, std::string_view ending) {
  if (ending.empty() || name.size() <= ending.size()) return false;
  if (lowered(name.substr(name.size() - ending.size())) != ending) return false;
  name.remove_suffix(ending.size());
  return true;
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

std::string_view shard_stem(std::string_view url) {
  std::string_view name = url;
  if (name.find("://") != name.npos) name = name.substr(0, name.find_first_of("?#"));
  name.remove_prefix(name.rfind('/') + 1);  // of npos: 0
  for (const known_compression& c : known_compressions) {
    if (take_ending(name, c.archive)) return name;
    std::string_view unpacked = name;
    if (take_ending(unpacked, c.ending) && take_ending(unpacked, ".tar")) return unpacked;
  }
  const auto dot = name.rfind('.');
  return dot == name.npos || dot == 0 ? name : name.substr(0, dot);
}

}  // namespace millrace
