#include "engine/base/units.h"

#include <fmt/format.h>

#include <charconv>

#include "engine/base/error.h"

namespace millrace {

result<std::size_t> parse_bytes(std::string_view text) {
  std::size_t number = 0;
  auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  // "1.5G": a fraction of a unit, which needs one.
  double fraction = 0;
  const bool has_fraction =
      failed == std::errc{} && end != text.data() + text.size() && *end == '.';
  if (has_fraction) {
    const auto part =
        std::from_chars(end, text.data() + text.size(), fraction, std::chars_format::fixed);
    if (part.ec != std::errc{}) failed = part.ec;
    end = part.ptr;
  }
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  static constexpr std::string_view prefixes = "KMGT";
  std::size_t shift = 0;
  bool known = unit.empty() || unit == "B";
  if (!known) {
    const char upper = static_cast<char>(unit[0] & ~0x20);
    const auto at = prefixes.find(upper);
    const auto rest = unit.substr(1);
    known = at != std::string_view::npos && (rest.empty() || rest == "B" || rest == "iB");
    shift = known ? 10 * (at + 1) : 0;
  }
  if (failed != std::errc{} || !known || (shift > 0 && number > (~std::size_t{0} >> shift))) {
    return error(errc::usage, fmt::format("'{}' is not a size", redacted(text)))
        .hint("write a number of bytes, or a number with K, M, G or T");
  }
  if (has_fraction && shift == 0) {
    return error(errc::usage, fmt::format("'{}' is a fraction of a byte", text));
  }
  return (number << shift) +
         static_cast<std::size_t>(fraction * static_cast<double>(1ULL << shift));
}

std::string format_bytes(std::size_t bytes) {
  if (bytes < 1_KiB) return fmt::format("{} B", bytes);
  auto n = static_cast<double>(bytes) / 1024;
  std::string_view units = "KMGTPE";
  for (; n >= 1024; n /= 1024) units.remove_prefix(1);
  return fmt::format("{:.1f} {}iB", n, units.front());
}

}  // namespace millrace
