#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/source.h"

namespace millrace {

// A shard's name put into a base: in the place of "%s" or "{}" where the base has one, else behind
// it, with a '/' between them. Names that are URLs or absolute paths stay as they are, as all do
// where the base is empty. Pure.
std::string with_base(std::string_view base, const std::string& name);

// The first rule whose `from` the URL begins with replaces it. Pure.
std::string rewritten(const std::string& url, const rewrite_rules& rules);

// "from=to;from=to". Fails with bad_setting. Pure.
result<rewrite_rules> parse_rewrites(const std::string& text);

// The shards that the specs name: expanded (expand_shards), put behind `base`, and listed where
// they name many files (with_folders) or objects of a store (with_listings). Blocks where a store
// is asked.
result<std::vector<std::string>> find_shards(std::span<const std::string> specs,
                                             std::string_view base, const source_options& options);

}  // namespace millrace
