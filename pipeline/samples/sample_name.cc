#include "pipeline/samples/sample_name.h"

#include <fmt/format.h>

#include "engine/base/fingerprint.h"
#include "engine/base/words.h"

namespace millrace {

std::optional<key_and_extension> split_name(std::string_view name) {
  // WebDataset's regular expression is ^((?:.*/|)[^.]+)[.]([^/]*)$ with greedy `.*/`, whose `.`
  // matches no line feed. So the first dot of the last component splits the name. If that component
  // begins with the dot, [^.]+ matches from the end of a shorter prefix on ("dir/.hidden" has the
  // key "dir/").
  const auto slash = name.rfind('/');
  const auto base = slash == name.npos ? 0 : slash + 1;
  std::size_t dot = name.npos;
  for (std::size_t prefix = base;; prefix = prefix < 2 ? 0 : name.rfind('/', prefix - 2) + 1) {
    const bool is_line = name.substr(0, prefix).find('\n') == name.npos;
    const auto first = name.find('.', prefix);
    if (first == name.npos) return std::nullopt;
    if (is_line && first > prefix && first >= base) dot = first;
    if (dot != name.npos) break;
    if (prefix == 0) return std::nullopt;
  }
  return key_and_extension{std::string(name.substr(0, dot)), lowered(name.substr(dot + 1))};
}

bool is_extension(std::string_view text) {
  return !text.empty() && text.front() != '.' && lowered(text) == text && trimmed(text) == text;
}

std::uint16_t name_sum(std::string_view key, std::string_view extension) {
  const std::uint64_t whole = fingerprint(extension, fingerprint(".", fingerprint(key)));
  return static_cast<std::uint16_t>(whole ^ whole >> 16 ^ whole >> 32 ^ whole >> 48);
}

std::string exceeded_limit(std::size_t fields, std::size_t name_bytes) {
  if (fields > most_fields) return fmt::format("a sample of more than {} fields", most_fields);
  if (name_bytes > most_name_bytes) {
    return fmt::format("a sample with names of more than {} bytes", most_name_bytes);
  }
  return {};
}

std::optional<std::string_view> extension_after(std::string_view key, std::string_view name) {
  if (!name.starts_with(key) || name.size() == key.size() || name[key.size()] != '.') return {};
  const auto extension = name.substr(key.size() + 1);
  return extension.find('/') == extension.npos ? std::optional(extension) : std::nullopt;
}

bool is_meta_name(std::string_view name) {
  const auto top = name.substr(0, name.find('/'));
  const bool underscored = top.size() >= 4 && top.starts_with("__") && top.ends_with("__");
  return underscored && top.substr(2, top.size() - 4).find('/') == top.npos;
}

}  // namespace millrace
