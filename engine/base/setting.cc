#include "engine/base/setting.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <vector>

#include "engine/base/units.h"
#include "engine/base/words.h"

namespace millrace {
namespace {

bool is_choice(const setting& s, std::string_view text) {
  return choice_index(s, text) < split(s.choices, '|').size();
}

std::optional<double> number_of(const setting& s, const std::string& text) {
  using kind = setting_type;
  if (s.type == kind::choice) return is_choice(s, text) ? std::optional(0.0) : std::nullopt;
  if (s.type == setting_type::text) return text.empty() ? std::nullopt : std::optional(0.0);
  if (s.type == kind::choice_or_integer && is_choice(s, text)) return 0.0;
  if (text == "auto") return s.initial == "auto" ? std::optional(0.0) : std::nullopt;
  double number = 0;
  if (s.type == kind::size) {
    const auto bytes = parse_bytes(text);
    if (!bytes) return std::nullopt;
    number = static_cast<double>(*bytes);
  } else {
    const char* const all = text.data() + text.size();
    const auto [end, failed] = std::from_chars(text.data(), all, number);
    if (failed != std::errc() || end != all) return std::nullopt;
    if (s.type != kind::seconds && number != std::trunc(number)) return std::nullopt;
  }
  return number >= s.least && number <= s.most ? std::optional(number) : std::nullopt;
}

// Switches understand what people write: true, yes and 1 for on; false, no and 0 for off.
std::string canonical(const setting& s, const std::string& text) {
  const bool is_number = s.type == setting_type::choice_or_integer && number_of(s, text);
  if (s.choices.empty() || is_choice(s, text) || is_number) return text;
  static constexpr std::array<std::string_view, 4> on{"on", "true", "yes", "1"};
  static constexpr std::array<std::string_view, 4> off{"off", "false", "no", "0"};
  const std::string lower = lowered(text);
  for (const auto& words : {on, off}) {
    if (std::ranges::find(words, lower) == words.end()) continue;
    const auto found = std::ranges::find_if(words, [&](auto word) { return is_choice(s, word); });
    if (found != words.end()) return std::string(*found);
  }
  return text;
}

}  // namespace

setting size_setting(std::string_view name, std::size_t least, std::size_t most,
                     std::string_view meaning) {
  return {.name = name,
          .type = setting_type::size,
          .least = static_cast<double>(least),
          .most = static_cast<double>(most),
          .meaning = meaning};
}
setting integer_setting(std::string_view name, int least, int most, std::string_view meaning) {
  return {.name = name,
          .type = setting_type::integer,
          .least = static_cast<double>(least),
          .most = static_cast<double>(most),
          .meaning = meaning};
}
setting seconds_setting(std::string_view name, double least, double most,
                        std::string_view meaning) {
  return {.name = name,
          .type = setting_type::seconds,
          .least = least,
          .most = most,
          .meaning = meaning};
}
setting choice_setting(std::string_view name, std::string_view choices, std::string_view meaning) {
  return {.name = name, .type = setting_type::choice, .choices = choices, .meaning = meaning};
}
setting text_setting(std::string_view name, std::string_view meaning,
                     std::string (*shown)(const std::string&)) {
  return {.name = name, .meaning = meaning, .shown = shown};
}

std::optional<setting_value> parse_setting(const setting& s, const std::string& text) {
  std::string known = canonical(s, text);
  const auto number = number_of(s, known);
  if (!number) return std::nullopt;
  return setting_value{std::move(known), *number};
}

std::string range_of(const setting& s) {
  using kind = setting_type;
  if (s.type == kind::choice) return "one of " + std::string(s.choices);
  if (s.type == kind::text) return "a text";
  if (s.type == kind::choice_or_integer) {
    return fmt::format("one of {}, or a number from {} to {}", s.choices, s.least, s.most);
  }
  const std::string_view what = s.type == kind::size      ? "a size from "
                                : s.type == kind::seconds ? "seconds from "
                                                          : "a number from ";
  const auto written = [&](double number) {
    return s.type == kind::size ? format_bytes(static_cast<std::size_t>(number))
                                : fmt::format("{:g}", number);
  };
  return fmt::format("{}{}{} to {}", s.initial == "auto" ? "auto, or " : "", what, written(s.least),
                     written(s.most));
}

std::string short_bytes(double bytes) {
  constexpr std::string_view units = " KMGT";
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < units.size(); ++unit) bytes /= 1024;
  return unit == 0 ? fmt::format("{}", bytes) : fmt::format("{}{}", bytes, units[unit]);
}

std::size_t choice_index(const setting& s, std::string_view text) {
  const auto all = split(s.choices, '|');
  return static_cast<std::size_t>(std::ranges::find(all, text) - all.begin());
}

std::string choice_at(const setting& s, std::size_t index) {
  return split(s.choices, '|').at(index);
}

}  // namespace millrace
