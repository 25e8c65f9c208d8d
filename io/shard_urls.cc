#include "io/shard_urls.h"

#include "io/folder_listing.h"
#include "io/shard_spec.h"
#include "io/url_scheme.h"

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
                                             object_sizes* sizes) {
  auto urls = expand_shards(specs);
  if (!urls) return urls;
  for (std::string& url : *urls) url = with_base(base, url);
  auto files = with_folders(std::move(*urls));
  if (!files) return files;
  return with_listings(std::move(*files), options, sizes);
}

}  // namespace millrace
