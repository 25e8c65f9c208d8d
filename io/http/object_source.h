#pragma once

#include <memory>

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

}  // namespace millrace
