#pragma once

#include <memory>
#include <string>

#include "io/http/tls_options.h"
#include "io/http/transport.h"

namespace millrace {

// TLS 1.2 and later. The peer's certificate is always verified, against the host's authorities and
// those of ca_file, and for the requested name; there is no way to turn that off. Keeps each peer's
// sessions for the next connection to it. One I/O thread.
class tls_context {
 public:
  virtual ~tls_context() = default;
  // Takes ownership of `below` and does the handshake with `host` (a name or an IP address). `peer`
  // identifies the sessions that may be resumed. A certificate that cannot be verified fails with
  // `untrusted`, which is not retryable and states the reason.
  virtual awaitable<result<std::unique_ptr<byte_stream>>> handshake(
      std::unique_ptr<byte_stream> below, std::string host, std::string peer,
      time_source::time_point deadline) = 0;
};

// Fails with `usage` if a file cannot be read or is not of the right kind.
result<std::shared_ptr<tls_context>> make_tls_context(const tls_options& options);

}  // namespace millrace
