#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/command.h"

namespace millrace::cli {
namespace {

std::string_view type_name(setting_type type) {
  switch (type) {
    case setting_type::bytes:
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

}  // namespace

action add_env(CLI::App& app) {
  CLI::App* command = app.add_subcommand("env", "every variable: type, default, value, meaning");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "print one JSON object on the last line");
  return [json](const environment& e) {
    auto list = nlohmann::json::array();
    for (const setting& s : all_settings()) {
      const std::string& value = e.variables.text(s.name);
      const std::string range = s.type == setting_type::choice
                                    ? std::string(s.choices)
                                    : fmt::format("{:g}..{:g}", s.least, s.most);
      list.push_back({{"name", s.name},
                      {"type", type_name(s.type)},
                      {"default", s.initial},
                      {"value", value},
                      {"set", e.variables.is_set(s.name)},
                      {"range", range},
                      {"meaning", s.meaning}});
      if (*json) continue;
      fmt::print("{:34} {:8} default {:7} now {:10} {}\n", s.name, type_name(s.type), s.initial,
                 value, s.meaning);
    }
    // Some of these are secrets: that they are set is all that is shown.
    std::string also;
    auto foreign = nlohmann::json::object();
    for (const std::string_view name : foreign_variables()) {
      const bool set = e.variables.foreign().contains(std::string(name));
      foreign[std::string(name)] = set;
      also += fmt::format("{}{}{}", also.empty() ? "" : " ", name, set ? " (set)" : "");
    }
    if (*json) {
      fmt::print("{}\n", nlohmann::json{{"variables", list}, {"also_read", foreign}}.dump());
    } else {
      fmt::print("\nalso read, for proxies and object stores: {}\n", also);
    }
    return 0;
  };
}

}  // namespace millrace::cli
