#include "io/shard_urls.h"

#include <algorithm>
#include <utility>

#include "io/names/folder_listing.h"
#include "io/names/shard_spec.h"
#include "io/names/url_scheme.h"

namespace millrace {

std::string with_base(std::string_view base, const std::string& name) {
  const bool stays =
      base.empty() || name.starts_with('/') || name.empty() || name == "-" || has_scheme(name);
  if (stays) return name;
  std::string out(base);
  for (const std::string_view place : {"%s", "{}"}) {
    if (const auto at = out.find(place); at != std::string::npos) return out.replace(at, 2, name);
  }
  if (!out.ends_with('/')) out += '/';
  return out + name;
}

result<std::vector<std::string>> find_shards(const std::vector<std::string>& specs,
                                             std::string_view base, const source_options& options,
                                             listing_facts* facts) {
  auto urls = expand_shards(specs);
  if (!urls) return urls;
  for (std::string& url : *urls) url = with_base(base, url);
  listing_facts found;
  auto files = with_folders(std::move(*urls), &found.lists_any);
  if (!files) return files;
  found.lists_any = found.lists_any || std::ranges::any_of(*files, is_listing);
  auto all = with_listings(std::move(*files), options, &found.sizes);
  if (facts != nullptr) *facts = std::move(found);
  return all;
}

}  // namespace millrace
