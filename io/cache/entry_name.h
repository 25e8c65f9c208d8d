#pragma once

#include <string>

#include "io/http/transfer.h"

namespace millrace {

// Whether a version can be told from a later one of the same size: it has an ETag or a time of
// change. Other objects are not cached. Pure.
bool identifies(const object_version& version);

// The URL without userinfo and, where it is signed (AWS, Google, Azure, CloudFront), without its
// signature, so that all users of an object share it. Every other query is part of the name. Pure.
std::string canonical_url(const std::string& url);

// The name of `version` of the object at `url` in a cache: 64 hexadecimal digits. Pure.
std::string cache_name(const std::string& url, const object_version& version);
// The name under which the last version of `url` that was seen is kept. Pure.
std::string seen_name(const std::string& url);

// Whether a file name is that of an entry.
bool is_cache_name(const std::string& file);

}  // namespace millrace
