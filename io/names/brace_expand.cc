#include "io/names/brace_expand.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <regex>

#include "engine/base/process_wide.h"

namespace millrace {
namespace {

using strings = std::vector<std::string>;

// A range may be long, but must fit into memory: "{0..99999999999}" is a typing error.
constexpr std::size_t max_items = 50'000'000;
constexpr std::string_view alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

error unbalanced() {
  return error(errc::usage, "braces do not balance").hint("write a brace as \\{ to mean itself");
}
error too_many() {
  return error(errc::usage, fmt::format("the braces expand to more than {} names", max_items))
      .hint("name fewer, in several ranges or a list (@FILE)");
}

// Whether braces are nested deeper than anyone means to nest them: each level takes stack.
bool is_too_deep(std::string_view pattern) {
  constexpr int most = 64;
  int depth = 0;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '\\')
      ++i;
    else if (pattern[i] == '{' && ++depth > most)
      return true;
    else if (pattern[i] == '}')
      --depth;
  }
  return false;
}

result<strings> parse_pattern(std::string_view pattern);

// Steps through "start, start + step, ..." up to and including `end`, in either direction.
template <class Emit>
result<strings> range(long long start, long long end, long long step, Emit emit) {
  strings out;
  const auto distance = static_cast<unsigned long long>(start < end ? end - start : start - end);
  const auto stride = static_cast<unsigned long long>(step);
  if (distance / stride >= max_items) return too_many();
  for (unsigned long long at = 0; at <= distance; at += stride) {
    const auto moved = static_cast<long long>(at);
    out.push_back(emit(start < end ? start + moved : start - moved));
  }
  return out;
}

result<std::optional<strings>> parse_range(const std::string& expression) {
  static const never_destroyed<std::regex> integers(
      R"((-?\d{1,18})\.\.(-?\d{1,18})(?:\.\.-?(\d{1,18}))?)");
  static const never_destroyed<std::regex> letters(
      R"(([A-Za-z])\.\.([A-Za-z])(?:\.\.-?(\d{1,18}))?)");
  std::smatch match;
  const auto step = [&match] {
    return match[3].matched ? std::max(1LL, std::stoll(match[3])) : 1LL;
  };
  result<strings> items = strings();
  if (std::regex_match(expression, match, *integers)) {
    const std::string left = match[1];
    const std::string right = match[2];
    const auto padded = [](const std::string& s) {
      return (s.starts_with('0') || s.starts_with("-0")) && s != "0" && s != "-0";
    };
    const std::size_t width =
        padded(left) || padded(right) ? std::max(left.size(), right.size()) : 0;
    items = range(std::stoll(left), std::stoll(right), step(),
                  [width](long long n) { return fmt::format("{:0{}}", n, width); });
  } else if (std::regex_match(expression, match, *letters)) {
    const auto at = [&](int group) {
      return static_cast<long long>(alphabet.find(match[static_cast<std::size_t>(group)].str()));
    };
    items = range(at(1), at(2), step(), [](long long n) {
      return std::string(1, alphabet[static_cast<std::size_t>(n)]);
    });
  } else {
    return std::optional<strings>();
  }
  if (!items) return items.error();
  return std::optional(std::move(*items));
}

// The comma-separated alternatives of `expression`; nullopt if it has no comma.
result<std::optional<strings>> parse_list(std::string_view expression) {
  strings out;
  std::size_t start = 0;
  int depth = 0;
  bool has_comma = false;
  const auto add = [&](std::string_view part) -> result<void> {
    auto items = parse_pattern(part);
    if (!items) return items.error();
    if (items->size() > max_items - out.size()) return too_many();
    std::ranges::move(*items, std::back_inserter(out));
    return {};
  };
  for (std::size_t pos = 0; pos < expression.size(); ++pos) {
    const char c = expression[pos];
    if (c == '\\') {
      ++pos;
    } else if (c == '{') {
      ++depth;
    } else if (c == '}') {
      --depth;
    } else if (c == ',' && depth == 0) {
      has_comma = true;
      if (auto added = add(expression.substr(start, pos - start)); !added) return added.error();
      start = pos + 1;
    }
  }
  if (depth != 0) return unbalanced();
  if (!has_comma) return std::optional<strings>();
  if (auto added = add(expression.substr(start)); !added) return added.error();
  return std::optional(std::move(out));
}

result<strings> parse_braces(std::string_view expression) {
  auto found = parse_range(std::string(expression));
  if (found && !*found) found = parse_list(expression);
  if (!found) return found.error();
  if (*found) return std::move(**found);
  auto literal = parse_pattern(expression);
  if (!literal) return literal.error();
  for (std::string& s : *literal) s = fmt::format("{{{}}}", s);
  return literal;
}

// All combinations of one item of each part, joined; the item of the last part changes fastest.
result<strings> product(const std::vector<strings>& parts) {
  std::size_t count = 1;
  for (const strings& part : parts) {
    if (part.size() > max_items / std::max<std::size_t>(count, 1)) return too_many();
    count *= part.size();
  }
  strings out;
  out.reserve(count);
  std::vector<std::size_t> turn(parts.size());
  std::string whole;
  for (std::size_t n = 0; n < count; ++n) {
    whole.clear();
    for (std::size_t p = 0; p < parts.size(); ++p) whole += parts[p][turn[p]];
    out.push_back(whole);
    for (std::size_t p = parts.size(); p-- > 0;) {
      if (++turn[p] < parts[p].size()) break;
      turn[p] = 0;
    }
  }
  return out;
}

result<strings> parse_pattern(std::string_view pattern) {
  std::vector<strings> parts;
  std::size_t start = 0;
  int depth = 0;
  for (std::size_t pos = 0; pos < pattern.size(); ++pos) {
    const char c = pattern[pos];
    if (c == '\\') {
      ++pos;
    } else if (c == '{') {
      if (depth++ == 0 && pos > start) {
        parts.push_back({std::string(pattern.substr(start, pos - start))});
        start = pos;
      }
    } else if (c == '}') {
      if (--depth < 0) return unbalanced();
      if (depth == 0) {
        auto items = parse_braces(pattern.substr(start + 1, pos - start - 1));
        if (!items) return items.error();
        parts.push_back(std::move(*items));
        start = pos + 1;
      }
    }
  }
  if (depth != 0) return unbalanced();
  if (start < pattern.size()) parts.push_back({std::string(pattern.substr(start))});
  return product(parts);
}

}  // namespace

result<strings> brace_expand(std::string_view pattern) {
  if (is_too_deep(pattern)) return error(errc::usage, "braces are nested more than 64 deep");
  auto out = parse_pattern(pattern);
  if (!out) return out.error().at(pattern);
  for (std::string& s : *out) {
    if (s.find('\\') == std::string::npos) continue;
    std::string plain;
    for (std::size_t i = 0; i < s.size(); ++i) {
      if (s[i] == '\\' && i + 1 < s.size()) ++i;
      plain += s[i];
    }
    s = std::move(plain);
  }
  return out;
}

}  // namespace millrace
