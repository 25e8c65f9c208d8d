#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
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

// What an error may tell of what a server chose to send: it may repeat the request, with all that
// is secret in it.
//
// The code in a store's error page, "AccessDenied": its letters and dots, up to the first other
// character; empty where there is none.
std::string error_code_in(std::string_view body);
// "bytes 0-9/20", or that there is none.
std::string told_range(const response_head& head);
// The first coding of a body that nobody asked for: all but identity and, for its transfer,
// chunked. "Content-Encoding 'gzip'", with its name where that is a known one.
std::optional<std::string> unwanted_encoding(const response_head& head);
// "us-east-1"; nullopt for what is not written as a region's name is.
std::optional<std::string> told_region(std::string_view region);

// Seconds, or an HTTP date seen from `now` (seconds since the epoch); nullopt for neither.
std::optional<std::chrono::seconds> parse_retry_after(std::string_view text, std::int64_t now);

}  // namespace millrace
