#pragma once

#include <cstddef>
#include <string>

#include "io/http/object.h"
#include "io/http/stack.h"

namespace millrace {

// The answer to ask().
struct http_answer {
  response_head head;
  std::string body;
};

// Fetches a small answer whole into memory: credentials, listings. Follows redirects, and retries
// as http_transfer does, with the request's method and body. Fails with too_large above `most`; if
// that is 0, the body of a successful answer is not read.
awaitable<result<http_answer>> ask(http_stack& stack, scope& tasks, http_object object,
                                   std::string method = "GET", std::string body = {},
                                   std::size_t most = 1UL << 20);

}  // namespace millrace
