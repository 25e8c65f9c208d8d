#include "io/names/shard_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <utility>

#include "engine/files/folders.h"
#include "io/names/brace_expand.h"

namespace millrace {
namespace {

constexpr int max_rounds = 10;
constexpr int max_list_depth = 4;

result<std::string> substituted(std::string text, const variable_lookup& variables) {
  for (int round = 0; round < max_rounds && text.find("${") != std::string::npos; ++round) {
    std::string out;
    std::size_t from = 0;
    for (auto at = text.find("${"); at != std::string::npos; at = text.find("${", from)) {
      const auto close = text.find('}', at);
      if (close == std::string::npos) break;
      const std::string name = text.substr(at + 2, close - at - 2);
      const auto value = variables(name);
      if (!value) {
        return error(errc::usage, fmt::format("the shard spec contains ${{{}}}", name))
            .at(text)
            .hint(fmt::format("set WDS_{}", name));
      }
      out.append(text, from, at - from).append(*value);
      from = close + 1;
    }
    text = out.append(text, from);
  }
  return text;
}

void append(std::vector<std::string>& to, std::vector<std::string> more) {
  if (to.empty()) {
    to = std::move(more);
  } else {
    std::ranges::move(more, std::back_inserter(to));
  }
}

result<std::vector<std::string>> expand_part(const std::string& part,
                                             const variable_lookup& variables, int depth);

result<std::vector<std::string>> expand_list(const std::string& file,
                                             const variable_lookup& variables, int depth) {
  if (depth >= max_list_depth) {
    return error(errc::usage, "lists that name lists are nested too deeply").at(file);
  }
  std::istringstream opened;
  if (file != "-") {
    if (is_folder(file)) {
      return error(errc::usage, "this is a folder, not a list of shards")
          .at(file)
          .hint("@FILE names a text file with one shard a line; a folder of shards needs no @");
    }
    auto text = read_whole_file(file);
    if (!text) {
      return error(text.error()).hint("@FILE names a text file with one shard a line");
    }
    opened.str(std::move(*text));
  }
  std::istream& in = file == "-" ? std::cin : opened;
  std::vector<std::string> out;
  bool is_first = true;
  for (std::string line; std::getline(in, line);) {
    if (std::exchange(is_first, false)) drop_byte_order_mark(line);
    const auto first = line.find_first_not_of(" \t\r");
    if (first == std::string::npos || line[first] == '#') continue;
    auto shards = expand_part(line.substr(first, line.find_last_not_of(" \t\r") + 1 - first),
                              variables, depth + 1);
    if (!shards) return shards.error();
    append(out, std::move(*shards));
  }
  return out;
}

result<std::vector<std::string>> expand_part(const std::string& part,
                                             const variable_lookup& variables, int depth) {
  if (part.starts_with('@')) return expand_list(part.substr(1), variables, depth);
  auto text = substituted(part, variables);
  if (!text) return text.error();
  return brace_expand(*text);
}

}  // namespace

variable_lookup wds_variables() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(("WDS_" + name).c_str());
    return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
  };
}

result<std::vector<std::string>> expand_shards(std::string_view spec,
                                               const variable_lookup& variables) {
  std::vector<std::string> out;
  for (std::size_t from = 0; from <= spec.size();) {
    const auto end = std::min(spec.find("::", from), spec.size());
    const std::string part(spec.substr(from, end - from));
    from = end + 2;
    if (part.empty()) continue;
    auto shards = expand_part(part, variables, 0);
    if (!shards) return shards.error();
    append(out, std::move(*shards));
  }
  if (out.empty()) return error(errc::usage, "no shards are given").at(spec);
  return out;
}

result<std::vector<std::string>> expand_shards(std::span<const std::string> specs,
                                               const variable_lookup& variables) {
  std::vector<std::string> out;
  for (const std::string& spec : specs) {
    auto shards = expand_shards(spec, variables);
    if (!shards) return shards.error();
    append(out, std::move(*shards));
  }
  return out;
}

std::vector<std::string> expand(std::string_view spec) {
  return expand_shards(spec).value();
}

}  // namespace millrace
