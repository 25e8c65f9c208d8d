#pragma once

#include <chrono>
#include <cstdint>

namespace millrace {

// Time limits of the steps of a request.
struct http_timeouts {
  std::chrono::milliseconds connect{5'000};      // name look-up and connection
  std::chrono::milliseconds tls{5'000};          // TLS handshake
  std::chrono::milliseconds first_byte{10'000};  // from the end of the request
  std::chrono::milliseconds progress{10'000};    // in which progress_bytes must move
};

// A transfer, either way, of fewer bytes than this in http_timeouts::progress has stalled, and is
// retried.
inline constexpr std::uint64_t progress_bytes = 65'536;

}  // namespace millrace
