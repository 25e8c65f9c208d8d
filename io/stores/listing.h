#pragma once

#include <string>
#include <vector>

#include "io/source.h"

namespace millrace {

// Whether a URL names many objects: one of a store (s3:, gs:, az:, ais:, hf:) that ends with '/' or
// has a
// '*' in its key. Pure.
bool is_listing(const std::string& url);

// Whether `text` is what `pattern` describes: '*' stands for any characters but '/'. Pure.
bool matches_pattern(std::string_view text, std::string_view pattern);

// Puts the objects' URLs in the place of each URL that names many, in byte order. Asks the stores,
// on a thread of its own, and blocks; does nothing where no URL names many. Fails with not_found
// where one names nothing.
result<std::vector<std::string>> with_listings(std::vector<std::string> urls,
                                               const source_options& options);

}  // namespace millrace
