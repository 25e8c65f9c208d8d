#pragma once

#include <functional>
#include <memory>

#include "io/cache/cached_source.h"
#include "io/http/stack.h"
#include "io/source.h"

namespace millrace {

// A range of an object on an HTTP/1.1 server: one streaming GET, or parts that are fetched
// side by side where that gains and given out in order. A cut connection is resumed at the byte
// (http_transfer), a late part asked for a second time (hedge_policy), and an object with a known
// digest is checked against it: a small one before its first byte is given out, others before their
// last. Where a version is `known`, no other is given.
std::unique_ptr<byte_source> http_object_source(source_context context,
                                                std::shared_ptr<http_stack> stack,
                                                http_object object, byte_range range,
                                                object_version known = {});

// The same through the cache, where that is on. `url`: what the user calls the object.
std::unique_ptr<byte_source> cached_http_source(source_context context,
                                                std::shared_ptr<http_stack> stack,
                                                const std::shared_ptr<object_cache>& cache,
                                                http_object object, std::string url,
                                                byte_range range);

// For http: and https: URLs.
source_factory http_source_factory(std::shared_ptr<http_stack> stack,
                                   std::shared_ptr<object_cache> cache);

}  // namespace millrace
