#include "io/http/header_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>

#include "engine/base/words.h"

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

// The unit before a range: compared as tokens are (RFC 9110, 14.1).
bool skip_unit(std::string_view& text) {
  constexpr std::string_view unit = "bytes ";
  if (!equal_ignoring_case(text.substr(0, unit.size()), unit)) return false;
  text.remove_prefix(unit.size());
  return true;
}

// Takes the text up to the next comma off the list, and drops the comma.
std::string_view take_item(std::string_view& list) {
  const std::string_view item = list.substr(0, list.find(','));
  list.remove_prefix(std::min(item.size() + 1, list.size()));
  return item;
}

bool is_letter(char c) {
  return lowered(c) >= 'a' && lowered(c) <= 'z';
}

// "aws-chunked" is the coding of an upload, which some stores keep as if it were the object's.
bool says_nothing(std::string_view encoding) {
  return equal_ignoring_case(encoding, "aws-chunked") || equal_ignoring_case(encoding, "none");
}

}  // namespace

std::optional<content_range> parse_content_range(std::string_view text) {
  content_range r{};
  if (!skip_unit(text) || !parse_number(text, r.first) || !skip(text, "-") ||
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
  if (!skip_unit(rest) || !skip(rest, "*/") || !parse_number(rest, length) || !rest.empty())
    return std::nullopt;
  return length;
}

std::string error_code_in(std::string_view body) {
  constexpr std::string_view begin = "<Code>";
  constexpr std::size_t longest = 60;
  const auto from = body.find(begin);
  const auto to = body.find("</Code>");
  if (to == std::string_view::npos || from >= to) return {};
  const std::string_view code = body.substr(from + begin.size(), to - from - begin.size());
  const auto other =
      std::ranges::find_if_not(code, [](char c) { return is_letter(c) || c == '.'; });
  return std::string(
      code.substr(0, std::min(longest, static_cast<std::size_t>(other - code.begin()))));
}

std::string told_range(const response_head& head) {
  const auto text = head.field("content-range");
  if (!text) {
    const bool is_of_several = head.field("content-type").value_or("").starts_with("multipart/");
    return is_of_several ? "several parts, multipart" : "no Content-Range";
  }
  const auto range = parse_content_range(*text);
  if (!range) return "an invalid Content-Range";
  return fmt::format("bytes {}-{}/{}", range->first, range->last,
                     range->total ? std::to_string(*range->total) : "*");
}

std::optional<std::string> unwanted_encoding(const response_head& head) {
  constexpr std::array<std::string_view, 6> known{"gzip", "x-gzip", "deflate",
                                                  "br",   "zstd",   "compress"};
  for (const http_field& f : head.fields) {
    const bool is_transfer = equal_ignoring_case(f.name, "transfer-encoding");
    if (!is_transfer && !equal_ignoring_case(f.name, "content-encoding")) continue;
    for (std::string_view rest = f.value; !rest.empty();) {
      const std::string_view one = trimmed(take_item(rest));
      const bool is_none = one.empty() || equal_ignoring_case(one, "identity") ||
                           (is_transfer ? equal_ignoring_case(one, "chunked") : says_nothing(one));
      if (is_none) continue;
      const std::string_view name = is_transfer ? "Transfer-Encoding" : "Content-Encoding";
      if (std::ranges::find(known, one) == known.end()) return fmt::format("an unknown {}", name);
      return fmt::format("{} '{}'", name, one);
    }
  }
  return std::nullopt;
}

std::optional<std::string> told_region(std::string_view region) {
  constexpr std::size_t longest = 32;
  const bool is_one =
      !region.empty() && region.size() <= longest && std::ranges::all_of(region, [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
      });
  return is_one ? std::optional(std::string(region)) : std::nullopt;
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
