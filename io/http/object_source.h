#pragma once

#include <memory>

#include "io/http/object_version.h"
#include "io/http/stack.h"
#include "io/source.h"

namespace millrace {

// A range of an object on an HTTP/1.1 server: one streaming GET, or parts that are fetched in
// parallel, if that is faster, and given out in order. A cut connection is resumed at the byte
// (http_transfer), and a late part is requested a second time (hedge_policy). An object with a
// known digest is checked against it: a small one before its first byte is given out, others before
// their last. If a version is `known`, no other version is given out.
std::unique_ptr<byte_source> http_object_source(source_context context,
                                                std::shared_ptr<http_stack> stack,
                                                http_object object, byte_range range,
                                                object_version known = {});

}  // namespace millrace
