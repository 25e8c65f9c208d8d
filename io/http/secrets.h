#pragma once

#include <memory>
#include <optional>
#include <string>

#include "io/http/client.h"
#include "io/http/options.h"

namespace millrace {

// Authenticates requests. Called before each one, so that expiring credentials can be renewed in
// time. One I/O thread.
class request_signer {
 public:
  virtual ~request_signer() = default;
  // The fields to add to `what`, which is otherwise complete.
  virtual awaitable<result<http_fields>> sign(scope& tasks, const http_request& what) = 0;
  // The server refused the fields of sign(): fetches new credentials, or forgets the present ones.
  // True if another request may succeed.
  virtual awaitable<bool> refused() = 0;
};

// For http: and https: URLs, the first of: userinfo in the URL, a token file for the host (read
// again when it changes), the .netrc. Null if there is none.
std::shared_ptr<request_signer> web_secrets(const url& target, const http_options& options);

}  // namespace millrace
