#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "engine/printable.h"
#include "pipeline/engine_options.h"

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

// Without the secrets that some variables hold.
std::string shown_value(const setting& s, const environment& e) {
  const setting_value* value = e.variables.find(s.name);
  if (value == nullptr || value->text == s.initial) return s.initial;
  return s.shown != nullptr ? s.shown(value->text) : redacted(value->text);
}

// The values that it may have, as one writes them.
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

int env(const environment& e, bool json) {
  auto list = nlohmann::json::array();
  constexpr std::string_view row = "{:33} {:8} {:10} {:23} {}\n";
  if (!json) fmt::print(row, "variable", "default", "now", "may be", "meaning");
  for (const setting& s : all_settings()) {
    if (json) {
      list.push_back(to_json(s, e));
    } else {
      fmt::print(row, s.name, s.initial, printable(shown_value(s, e)), choices_of(s), s.meaning);
    }
  }
  // Some of these are secrets: only whether they are set is shown.
  std::string also;
  auto foreign = nlohmann::json::object();
  for (const std::string_view name : foreign_variables()) {
    const bool set = e.variables.foreign().contains(std::string(name));
    foreign[std::string(name)] = set;
    also += fmt::format("{}{}{}", also.empty() ? "" : " ", name, set ? " (set)" : "");
  }
  if (json) {
    print_json({{"variables", list}, {"also_read", foreign}});
  } else {
    fmt::print("\nalso read, for proxies and object stores: {}\n", also);
  }
  return 0;
}

}  // namespace

action add_env(CLI::App& app) {
  CLI::App* command = app.add_subcommand("env", "every variable: default, value, choices, meaning");
  auto json = std::make_shared<bool>(false);
  add_json(*command, *json);
  command->footer("Example:\n  MILLRACE_MEMORY=2G millrace env");
  return [json](const environment& e) { return env(e, *json); };
}

}  // namespace millrace::cli
