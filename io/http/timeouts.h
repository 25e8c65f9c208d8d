#pragma once

#include <chrono>
#include <cstdint>

namespace millrace {

// How long each step of a request may take.
struct http_timeouts {
  std::chrono::milliseconds connect{5'000};
  std::chrono::milliseconds tls{5'000};
  std::chrono::milliseconds first_byte{10'000};
  std::chrono::milliseconds progress{10'000};  // for progress_bytes
};

// A server that brings fewer bytes than this in http_timeouts::progress has stalled.
inline constexpr std::uint64_t progress_bytes = 65'536;

}  // namespace millrace
