#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/command.h"
#include "cli/commands.h"
#include "engine/base/printable.h"
#include "io/stores/known_stores.h"
#include "pipeline/run/engine_options.h"

namespace millrace::cli {
namespace {

std::string_view type_name(setting_type type) {
  switch (type) {
    case setting_type::size:
      return "bytes";
    case setting_type::integer:
      return "integer";
    case setting_type::seconds:
      return "seconds";
    case setting_type::choice:
      return "choice";
    case setting_type::choice_or_integer:
      return "choice or integer";
    case setting_type::text:
      return "text";
  }
  return "";
}

// The value without secrets.
std::string shown_value(const setting& s, const environment& e) {
  const setting_value* value = e.variables.find(s.name);
  if (value == nullptr || value->text == s.initial) return s.initial;
  return s.shown != nullptr ? s.shown(value->text) : redacted(value->text);
}

// The values it may have, as the user writes them.
std::string choices_of(const setting& s) {
  const auto number = [&](double n) {
    return s.type == setting_type::size ? short_bytes(n) : fmt::format("{}", n);
  };
  switch (s.type) {
    case setting_type::choice:
      return std::string(s.choices);
    case setting_type::text:
      return "text";
    case setting_type::choice_or_integer:
      return fmt::format("{}|{} to {}", s.choices, number(s.least), number(s.most));
    default:
      return fmt::format("{}{} to {}", s.initial == "auto" ? "auto|" : "", number(s.least),
                         number(s.most));
  }
}

nlohmann::json to_json(const setting& s, const environment& e) {
  const bool is_number = s.type != setting_type::choice && s.type != setting_type::text;
  nlohmann::json out{{"name", s.name},
                     {"group", s.group},
                     {"type", type_name(s.type)},
                     {"default", s.initial},
                     {"value", shown_value(s, e)},
                     {"set", e.variables.find(s.name) != nullptr},
                     {"range", choices_of(s)},
                     {"meaning", s.meaning}};
  out["least"] = is_number ? nlohmann::json(s.least) : nlohmann::json();
  out["most"] = is_number ? nlohmann::json(s.most) : nlohmann::json();
  return out;
}

// The headings of the list, in order of first appearance.
std::vector<std::string_view> groups() {
  std::vector<std::string_view> found;
  for (const setting& s : all_settings()) {
    if (std::ranges::find(found, s.group) == found.end()) found.push_back(s.group);
  }
  return found;
}

bool is_set(const environment& e, const foreign_variable& v) {
  return e.variables.foreign().contains(std::string(v.name));
}

constexpr std::string_view others = "Variables of other programs, for proxies and object stores";

void show_json(const environment& e) {
  auto list = nlohmann::json::array();
  for (const setting& s : all_settings()) list.push_back(to_json(s, e));
  // Some of these are secrets: only whether they are set is shown.
  auto foreign = nlohmann::json::object();
  for (const foreign_variable& v : foreign_variables()) foreign[std::string(v.name)] = is_set(e, v);
  print_json({{"variables", list}, {"also_read", foreign}});
}

void show_text(const environment& e) {
  constexpr std::string_view row = "{:33} {:8} {:10} {:23} {}\n";
  fmt::print(row, "variable", "default", "now", "may be", "meaning");
  for (const std::string_view group : groups()) {
    fmt::print("\n{}\n", group);
    for (const setting& s : all_settings()) {
      if (s.group != group) continue;
      fmt::print(row, s.name, s.initial, printable(shown_value(s, e)), choices_of(s), s.meaning);
    }
  }
  fmt::print("\n{}\n", others);
  for (const foreign_variable& v : foreign_variables()) {
    fmt::print("{:42} {:10} {}\n", v.name, is_set(e, v) ? "set" : "", v.meaning);
  }
}

// docs/variables.md.
void show_markdown() {
  const auto cell = [](std::string text) {
    for (auto at = text.find('|'); at != text.npos; at = text.find('|', at + 2)) {
      text.insert(at, 1, '\\');
    }
    return text;
  };
  fmt::print(
      "# Variables\n\n"
      "`millrace env --markdown` prints this page; `millrace env` also shows current values. An\n"
      "unknown variable that begins with `MILLRACE_`, or an invalid value, stops the program.\n"
      "Sizes are in bytes, or have a unit: K, M, G or T, powers of 1024.\n");
  for (const std::string_view group : groups()) {
    fmt::print("\n## {}\n| variable | default | may be | meaning |\n|---|---|---|---|\n", group);
    for (const setting& s : all_settings()) {
      if (s.group != group) continue;
      fmt::print("| `{}` | {} | {} | {} |\n", s.name, s.initial, cell(choices_of(s)),
                 cell(std::string(s.meaning)));
    }
  }
  fmt::print("\n## {}\n| variable | meaning |\n|---|---|\n", others);
  for (const foreign_variable& v : foreign_variables()) {
    fmt::print("| `{}` | {} |\n", v.name, v.meaning);
  }
}

}  // namespace

action add_env(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("env", "lists every variable: default, value, choices, meaning");
  auto json = std::make_shared<bool>(false);
  auto markdown = std::make_shared<bool>(false);
  add_json(*command, *json);
  command->add_flag("--markdown", *markdown, "print as a Markdown page, without values")
      ->group("Output")
      ->excludes(command->get_option("--json"));
  command->footer("Example:\n  MILLRACE_MEMORY=2G millrace env");
  return [json, markdown](const environment& e) {
    if (*json) {
      show_json(e);
    } else if (*markdown) {
      show_markdown();
    } else {
      show_text(e);
    }
    return 0;
  };
}

}  // namespace millrace::cli
