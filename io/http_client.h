#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/async.h"
#include "engine/result.h"
#include "io/http_transfer.h"
#include "io/url.h"

namespace millrace {

struct http_timeouts {
  std::chrono::milliseconds connect{5'000};
  std::chrono::milliseconds first_byte{10'000};
  std::chrono::milliseconds progress{10'000};  // for progress_bytes
};

// A server that brings fewer bytes than this in http_timeouts::progress has stalled.
inline constexpr std::uint64_t progress_bytes = 65'536;

// One response being read. One I/O thread, one call at a time.
class http_exchange {
 public:
  virtual ~http_exchange() = default;
  virtual const response_head& head() const = 0;
  // Some bytes of the body into `into`; 0 at its end. Fails with cut, timed_out or protocol.
  virtual awaitable<result<std::size_t>> read_body(std::span<std::byte> into) = 0;
};

// HTTP/1.1 requests on connections that are kept alive. The interface is the seam for other
// transports (TLS, proxies, a simulated network). One I/O thread.
class http_client {
 public:
  struct request {
    url target;
    std::optional<std::string> range;
    std::optional<std::string> if_range;
    bool fresh_connection = false;  // not one that was kept alive
  };
  struct outcome {
    std::unique_ptr<http_exchange> exchange;
    bool stale_connection = false;  // the kept-alive connection was dead: ask again, on a fresh one
  };

  virtual ~http_client() = default;
  // Sends a GET and reads the head of the answer.
  virtual awaitable<result<outcome>> get(request what, http_timeouts limits) = 0;
};

std::shared_ptr<http_client> make_http_client();

}  // namespace millrace
