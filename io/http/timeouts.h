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

// The timeout for the next byte of an answer that takes the server long to prepare
// (http_request::slow_answer), in multiples of http_timeouts::first_byte.
inline constexpr int slow_answer_wait = 12;
// The timeout for all of such an answer, in the same multiples.
inline constexpr int slow_answer_whole = 360;

}  // namespace millrace
