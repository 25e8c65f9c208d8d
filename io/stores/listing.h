#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "io/source.h"

namespace millrace {

// Bytes of objects by their URLs.
using object_sizes = std::map<std::string, std::uint64_t>;

// Whether a URL names several objects: one of a store (known_stores.h) that ends with
// '/', has a '*' in its key, or has no key. Pure.
bool is_listing(const std::string& url);

// Replaces each URL that names several objects by the URLs of those, in byte order, each once: a
// URL that ends with '/' or has no key by the shards below it, one with a '*' by what matches
// (io/names/shard_name.h). Asks the stores on a separate thread, and blocks; does nothing if no URL
// names several. Fills `sizes`, if given, with what the stores report. Fails with not_found if a
// URL names nothing.
result<std::vector<std::string>> with_listings(std::vector<std::string> urls,
                                               const source_options& options,
                                               object_sizes* sizes = nullptr);

}  // namespace millrace
