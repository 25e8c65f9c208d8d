#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/command.h"
#include "engine/printable.h"
#include "io/http/secret_file.h"

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

// 2097152 as 2M: as one would set it.
std::string short_bytes(double bytes) {
  constexpr std::string_view units = " KMGT";
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < units.size(); ++unit) bytes /= 1024;
  return unit == 0 ? fmt::format("{}", bytes) : fmt::format("{}{}", bytes, units[unit]);
}

std::string file_or_dots(const std::string& value) {
  const std::string shown = redacted(shown_file(value));
  return shown.empty() ? "..." : shown;
}

// Without the secrets that some variables hold.
std::string shown_value(const setting& s, const environment& e) {
  const std::string& value = e.variables.text(s.name);
  if (value == s.initial) return value;
  std::string out;
  const auto add = [&](char separator, const std::string& text) {
    out += (out.empty() ? "" : std::string(1, separator)) + text;
  };
  std::istringstream parts(value);
  if (s.name == "MILLRACE_HTTP_HEADERS") {
    for (std::string part; std::getline(parts, part, '|');) {
      const auto colon = part.find(':');
      add('|', colon == std::string::npos ? "..." : part.substr(0, colon) + ": ...");
    }
    return out;
  }
  if (s.name == "MILLRACE_HTTP_TOKENS") {
    for (std::string part; std::getline(parts, part, ';');) {
      const auto equals = std::min(part.find('='), part.size());
      const std::string host = part.substr(0, equals);
      const std::string file = part.substr(std::min(equals + 1, part.size()));
      const bool is_host = host == "localhost" || host.find_first_of(".:") != host.npos;
      // Without a host it may be the token itself.
      const std::string before = is_host && !file.empty() ? redacted(host) + "=" : "";
      const bool is_url = redacted(part) != part;
      add(';', is_url ? redacted(part) : before + (before.empty() ? "..." : file_or_dots(file)));
    }
    return out;
  }
  const bool is_file = s.name == "MILLRACE_CA_FILE" || s.name == "MILLRACE_CLIENT_CERT" ||
                       s.name == "MILLRACE_CLIENT_KEY" || s.name == "MILLRACE_NETRC";
  if (is_file) return file_or_dots(value);
  if (s.name == "MILLRACE_REWRITE") {
    for (std::string part; std::getline(parts, part, ';');) {
      const auto equals = std::min(part.find('='), part.size());
      const std::string from = part.substr(0, equals);
      const std::string to = part.substr(std::min(equals + 1, part.size()));
      // A '=' in a query ends no prefix: such a part lacks its own.
      const bool is_rule = from.find_first_of("?#") == std::string::npos;
      add(';', is_rule ? redacted(from) + "=" + redacted(to) : redacted(part));
    }
    return out;
  }
  return redacted(value);
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
                     {"set", e.variables.is_set(s.name)},
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
