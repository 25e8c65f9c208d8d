#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "io/http/message.h"

namespace millrace {

// A parsed Content-Range. first <= last < total.
struct content_range {
  std::uint64_t first;
  std::uint64_t last;
  std::optional<std::uint64_t> total;
};

// Parses "bytes 100-199/1000" or "bytes 100-199/*"; nullopt for anything else.
std::optional<content_range> parse_content_range(std::string_view text);

// The size of the whole object by Content-Range; nullopt if the head does not have it.
std::optional<std::uint64_t> total_in(const response_head& head);

// The same by the Content-Range of a range that cannot be satisfied, "bytes */1000".
std::optional<std::uint64_t> length_told(const response_head& head);

// The parts of a server's answer that an error may show. An answer may repeat the request, with all
// secrets in it.
//
// The code in a store's error page, such as "AccessDenied": its letters and dots, up to the first
// other character; empty if there is none.
std::string error_code_in(std::string_view body);
// "bytes 0-9/20", or the reason why there is no such range.
std::string told_range(const response_head& head);
// The first coding of a body that was not requested: any but identity and, for the transfer,
// chunked. "Content-Encoding 'gzip'", with its name if that is a known one.
std::optional<std::string> unwanted_encoding(const response_head& head);
// "us-east-1"; nullopt for text that does not have the form of a region's name.
std::optional<std::string> told_region(std::string_view region);

// Parses seconds, or an HTTP date relative to `now` (seconds since 1970); nullopt for anything
// else.
std::optional<std::chrono::seconds> parse_retry_after(std::string_view text, std::int64_t now);

}  // namespace millrace
