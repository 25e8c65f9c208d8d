#pragma once

#include <string_view>

#include "engine/base/error.h"
#include "io/names/url.h"

namespace millrace {

// Ways in which servers refuse requests, in addition to the head of one answer. Pure.

// True if a request that was answered with `status` may succeed when it is repeated later.
bool is_transient(int status);
// The meaning of `status` for the object at `target`. `name`: the user's name for it, in a store;
// else empty.
error status_error(int status, const url& target, std::string_view name);

// The error for an object that arrives in parts without proof that they are of one version.
error unidentified_part();

// S3 and similar stores begin an answer of 200 before they know that they will fail. Whether
// `front`, the first bytes of a body, may still become such an error page, and whether it is one.
bool may_be_error_page(std::string_view front);
bool is_error_page(std::string_view front);

// Whether an answer is the one that nginx, Apache or Go's servers give to a plain request on a TLS
// port.
bool asks_for_tls(std::string_view body);

}  // namespace millrace
