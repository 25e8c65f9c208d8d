#pragma once

#include <string>

#include "io/http/transfer.h"

namespace millrace {

// Whether a version can be distinguished from a later one of the same size: it has an ETag or a
// modification time. Other objects are not cached. Pure.
bool identifies(const object_version& version);

// The URL without userinfo and, if it is signed (AWS, Google, Azure, CloudFront), without its
// signature, so that all users of an object share it. Any other query is part of the name. Pure.
std::string canonical_url(const std::string& url);

// The name of `version` of the object at `url` in a cache: 64 hexadecimal digits. Pure.
std::string cache_name(const std::string& url, const object_version& version);
// The name under which the last seen version of `url` is kept. Pure.
std::string seen_name(const std::string& url);

// Whether a file name is an entry's.
bool is_cache_name(const std::string& file);

}  // namespace millrace
