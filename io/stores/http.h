#pragma once

#include <functional>
#include <memory>

#include "io/cache/cached_source.h"
#include "io/http/stack.h"
#include "io/source.h"

namespace millrace {

// A range of an object (io/http/object_source.h), through the cache if it is on. `url`: the
// object's name for the user.
std::unique_ptr<byte_source> cached_http_source(source_context context,
                                                std::shared_ptr<http_stack> stack,
                                                const std::shared_ptr<object_cache>& cache,
                                                http_object object, std::string url,
                                                byte_range range);

// For http: and https: URLs.
source_factory http_source_factory(std::shared_ptr<http_stack> stack,
                                   std::shared_ptr<object_cache> cache);

}  // namespace millrace
