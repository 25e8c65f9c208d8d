#pragma once

#include <string>
#include <string_view>

#include "io/http/ask.h"
#include "io/http/object.h"

namespace millrace {

// A request that changes something on a server: an upload or a part of one, a deletion.
struct http_change {
  http_object object;
  std::string method;          // "PUT", "POST", "DELETE"
  std::string_view body = {};  // outlives the request; copied once for each attempt
  http_fields fields = {};     // in addition to the object's
  bool slow_answer = false;    // see http_request
};

// Sends the request, and repeats it as retry_policy decides, until a server answers 200, 201, 202
// or 204; each step takes at most http_options::timeouts. It must have the same effect however
// often it arrives: an answer may be lost after the server has acted. Redirects are not followed,
// since the body may be a secret. An answer of 200 that contains an error page is repeated. Fails
// with what the last attempt came to, at the object's name, with the status and the store's code.
// `stack` and `tasks` outlive it.
awaitable<result<http_answer>> request_change(http_stack& stack, scope& tasks, http_change what);

}  // namespace millrace
