#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/options.h"
#include "io/stores/listing.h"

namespace millrace {

// Combines a base and a shard's name: the name replaces "%s" or "{}" in the base, or is appended
// with a '/' between them. URLs and absolute paths stay as they are, and so do all names if the
// base is empty. Pure.
std::string with_base(std::string_view base, const std::string& name);

// Facts that find_shards() learns in addition to the names.
struct listing_facts {
  // Whether some of the shards were listed: those of a folder, a pattern or a prefix, which are
  // complete.
  bool lists_any = false;
  object_sizes sizes;  // in bytes, as stores report them
};

// The shards that the specs name: expanded (expand_shards), combined with `base` (with_base), and
// listed if they name folders, patterns or prefixes of stores (with_listings). Blocks while a store
// is listed. Fills `facts` if given. Fails as those functions do.
result<std::vector<std::string>> find_shards(const std::vector<std::string>& specs,
                                             std::string_view base, const source_options& options,
                                             listing_facts* facts = nullptr);

}  // namespace millrace
