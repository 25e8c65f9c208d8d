#pragma once

#include <string_view>

#include "engine/error.h"
#include "io/names/url.h"

namespace millrace {

// How servers say no, apart from the head of one answer. Pure.

// Whether a later request may succeed where one was answered with `status`.
bool is_transient(int status);
// What `status` means for the object at `target`. `name`: the user's, in a store; else empty.
error status_error(int status, const url& target, std::string_view name);

// Of an object that comes in parts which nothing says are of one version.
error unidentified_part();

// S3 and its kin begin an answer of 200 before they know that they will fail: whether `front`, the
// first bytes of a body, may yet become such an error page, and whether it is one.
bool may_be_error_page(std::string_view front);
bool is_error_page(std::string_view front);

}  // namespace millrace
