#include "pipeline/wids/index_entries.h"

#include <filesystem>
#include <unordered_set>

#include "io/names/url.h"

namespace millrace {
namespace {

std::string file_name_in(const std::string& place) {
  return place.substr(place.rfind('/') + 1);
}

}  // namespace

std::string shard_place(const std::string& url) {
  const auto where = parse_url(url);
  if (!where || where->scheme != "file") return url;
  return std::filesystem::absolute(where->path).lexically_normal().string();
}

std::optional<std::string> repeated_shard(const std::vector<std::string>& urls) {
  std::unordered_set<std::string> seen;
  for (const std::string& url : urls) {
    if (!seen.insert(shard_place(url)).second) return url;
  }
  return std::nullopt;
}

error not_listed(const std::string& url, bool is_ambiguous) {
  if (!is_ambiguous) return error(errc::integrity, "the index does not list this shard").at(url);
  return error(errc::integrity,
               "the index lists this shard by another URL, and its file name is "
               "not unique")
      .at(url)
      .hint("name the shards as the index does");
}

index_entries::index_entries(const shard_index& said, const std::vector<std::string>& urls) {
  for (const auto& s : said.shards) {
    const std::string place = shard_place(s.url);
    by_place_.try_emplace(place, &s);
    of_name& named = by_name_[file_name_in(place)];
    if (named.entries++ == 0) named.entry = &s;
  }
  std::unordered_set<std::string> seen;
  for (const std::string& url : urls) {
    const std::string place = shard_place(url);
    if (!seen.insert(place).second) continue;
    const auto named = by_name_.find(file_name_in(place));
    if (named != by_name_.end()) ++named->second.places;
  }
}

index_entries::found index_entries::find(const std::string& url) const {
  const std::string place = shard_place(url);
  if (const auto it = by_place_.find(place); it != by_place_.end()) return {.shard = it->second};
  const auto it = by_name_.find(file_name_in(place));
  if (it == by_name_.end()) return {};
  const of_name& named = it->second;
  if (named.entries > 1 || named.places > 1) return {.is_ambiguous = true};
  return {.shard = named.entry};
}

}  // namespace millrace
