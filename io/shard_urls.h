#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/options.h"
#include "io/stores/listing.h"

namespace millrace {

// Combines a base and a shard's name: the name replaces "%s" or "{}" in the base, or else is
// appended with a '/' between them. Names that are URLs or absolute paths stay as they are, as all
// do where the base is empty. Pure.
std::string with_base(std::string_view base, const std::string& name);

// What find_shards() learns beside the names.
struct listing_facts {
  // Whether some of the shards were listed: of a folder, a pattern or a prefix, they are all that
  // there are.
  bool lists_any = false;
  object_sizes sizes;  // as the stores tell
};

// The shards that the specs name: expanded (expand_shards), combined with `base` (with_base), and
// listed where they name several files (with_folders) or objects of a store (with_listings). Blocks
// while a store is listed. `facts`, where given, is filled.
result<std::vector<std::string>> find_shards(const std::vector<std::string>& specs,
                                             std::string_view base, const source_options& options,
                                             listing_facts* facts = nullptr);

}  // namespace millrace
