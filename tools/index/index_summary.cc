#include "tools/index/index_summary.h"

#include <span>

#include "engine/base/error.h"
#include "engine/base/json_tree.h"
#include "io/names/url_scheme.h"
#include "pipeline/run/engine.h"
#include "pipeline/shards/shard_index.h"
#include "pipeline/wids/read_index.h"

namespace millrace {
namespace {

// The items of a list of the index; empty if the member is missing.
std::span<const json_tree> items_in(const json_tree& raw, const char* member) {
  const json_tree* const found = raw.find(member);
  const auto* const items = found == nullptr ? nullptr : found->as<json_tree::list>();
  return items == nullptr ? std::span<const json_tree>() : *items;
}

// The URL of an entry, without secrets. A relative one has them in its query if the base is a URL.
std::string shown_url_of(const json_tree& entry, const shard_index& index) {
  const std::string url(entry.text_of("url"));
  if (has_scheme(url) || !has_scheme(index.base)) return redacted(url);
  const auto query = url.find_first_of("?#");
  return redacted(query == url.npos ? url : url.substr(0, query) + "?...");
}

}  // namespace

index_summary summary_of_index(engine& eng, const std::string& url) {
  const shard_index index = read_index(eng, url);
  const auto raw = json_tree::read(read_text(eng, url), {.most = room_for_index(eng)}).value();
  const auto list = items_in(raw, "shardlist");
  index_summary out{.name = index.name,
                    .info = index.info,
                    .base = redacted(raw.text_of("base")),
                    .shards = std::ssize(index.shards),
                    .samples = index.samples(),
                    .bytes = index.bytes(),
                    .datasets = items_in(raw, "datasets").size(),
                    .offsets = index.has_offsets()};
  out.first = list.empty() ? redacted(index.shards.front().url) : shown_url_of(list.front(), index);
  out.last = list.empty() ? redacted(index.shards.back().url) : shown_url_of(list.back(), index);
  return out;
}

}  // namespace millrace
