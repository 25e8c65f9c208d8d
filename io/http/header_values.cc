#include "io/http/header_values.h"

#include <algorithm>
#include <charconv>
#include <ctime>

namespace millrace {
namespace {

bool parse_number(std::string_view& text, std::uint64_t& number) {
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failed != std::errc{}) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

bool skip(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

std::optional<content_range> parse_content_range(std::string_view text) {
  content_range r{};
  if (!skip(text, "bytes ") || !parse_number(text, r.first) || !skip(text, "-") ||
      !parse_number(text, r.last) || !skip(text, "/") || r.last < r.first) {
    return std::nullopt;
  }
  if (text == "*") return r;
  std::uint64_t total = 0;
  if (!parse_number(text, total) || !text.empty() || r.last >= total) return std::nullopt;
  r.total = total;
  return r;
}

std::optional<std::uint64_t> total_in(const response_head& head) {
  const auto text = head.field("content-range");
  const auto range = text ? parse_content_range(*text) : std::nullopt;
  return range ? range->total : std::nullopt;
}

std::optional<std::uint64_t> length_told(const response_head& head) {
  const std::string text = head.field("content-range").value_or("");
  std::string_view rest = text;
  std::uint64_t length = 0;
  if (!skip(rest, "bytes */") || !parse_number(rest, length) || !rest.empty()) return std::nullopt;
  return length;
}

std::optional<std::chrono::seconds> parse_retry_after(std::string_view text, std::int64_t now) {
  std::uint64_t seconds = 0;
  std::string_view rest = text;
  if (parse_number(rest, seconds) && rest.empty()) {
    return std::chrono::seconds(std::min<std::uint64_t>(seconds, 86400));
  }
  std::tm date{};
  const char* end = strptime(std::string(text).c_str(), "%a, %d %b %Y %H:%M:%S GMT", &date);
  if (end == nullptr) return std::nullopt;
  return std::chrono::seconds(std::max<std::int64_t>(timegm(&date) - now, 0));
}

}  // namespace millrace
