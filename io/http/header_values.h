#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

#include "io/http/message.h"

namespace millrace {

// Of a Content-Range. first <= last < total.
struct content_range {
  std::uint64_t first;
  std::uint64_t last;
  std::optional<std::uint64_t> total;
};

// "bytes 100-199/1000" or "bytes 100-199/*"; nullopt for all else.
std::optional<content_range> parse_content_range(std::string_view text);

// The size of the whole object by a Content-Range; nullopt where the head has none.
std::optional<std::uint64_t> total_in(const response_head& head);

// The same by that of a range that could not be given, "bytes */1000".
std::optional<std::uint64_t> length_told(const response_head& head);

// Seconds, or an HTTP date seen from `now` (seconds since the epoch); nullopt for neither.
std::optional<std::chrono::seconds> parse_retry_after(std::string_view text, std::int64_t now);

}  // namespace millrace
