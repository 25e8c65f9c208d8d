#pragma once

#include <string>
#include <string_view>

#include "engine/base/result.h"
#include "io/names/url.h"

namespace millrace {

// The key after the '/' of a store's path.
std::string key_of(const url& where);

// The key, and the text after the last `mark`. Pure.
struct key_and_option {
  std::string key;
  std::string option;  // empty: there is none
};
key_and_option split_key(const url& where, std::string_view mark);

// An endpoint's scheme, host and port, and the path before buckets, without a trailing '/'.
result<url> parse_endpoint(const std::string& text, std::string_view variable);

}  // namespace millrace
