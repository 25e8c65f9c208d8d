#include "train/command_line/flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/parsed_number.h"
#include "engine/base/spelling.h"

namespace millrace {
namespace {

// Comma-separated numbers.
std::optional<std::vector<double>> numbers_in(const std::string& text) {
  std::vector<double> out;
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t end = std::min(text.find(',', from), text.size());
    const auto value = parsed_number<double>(text.substr(from, end - from));
    if (!value) return std::nullopt;
    out.push_back(*value);
    from = end + 1;
  }
  return out;
}

std::string range_text(double least, double most) {
  if (most >= std::numeric_limits<std::int32_t>::max()) return fmt::format("{} or more", least);
  return fmt::format("{} to {}", least, most);
}

// CLI11 writes "--no-augment{false}" of a flag that switches off.
class help_text final : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    std::string out = CLI::Formatter::make_option_name(option, is_positional);
    constexpr std::string_view value = "{false}";
    if (const auto at = out.find(value); at != out.npos) out.erase(at, value.size());
    return out;
  }
};

}  // namespace

flag_set::flag_set(CLI::App& app) : app_(app) {
  app_.formatter(std::make_shared<help_text>());
  app_.option_defaults()
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
      ->always_capture_default();
}

double flag_set::largest_integer(std::size_t bytes) {
  // The largest double below the type's largest value.
  return bytes <= sizeof(std::int32_t) ? std::numeric_limits<std::int32_t>::max() : 0x1p62;
}

double flag_set::largest_real() {
  return std::numeric_limits<float>::max();  // models compute in float
}

CLI::Validator flag_set::not_empty() {
  const auto check = [](const std::string& text) {
    return text.empty() ? "the value is empty; write one, or leave the option out" : std::string();
  };
  return {check, ""};
}

CLI::Validator flag_set::in_range(double least, double most, bool is_whole) {
  const auto check = [=](const std::string& text) -> std::string {
    const std::string range = range_text(least, most);
    const auto value = parsed_number<double>(text);
    if (!value || !std::isfinite(*value) || (is_whole && !parsed_number<std::int64_t>(text))) {
      return fmt::format("'{}' is not a {}; use {}", text, is_whole ? "whole number" : "number",
                         range);
    }
    if (*value < least) return fmt::format("{} is not {}", text, range);
    if (*value > most) return fmt::format("{} is not {} to {}", text, least, most);
    return {};
  };
  return {check, "(" + range_text(least, most) + ")"};
}

CLI::Validator flag_set::one_of(const std::vector<std::string>& names,
                                bool (*is_other)(const std::string&), const char* other) {
  const std::string known = fmt::format("{}", fmt::join(names, ", "));
  const auto check = [=](const std::string& text) -> std::string {
    if (std::ranges::find(names, text) != names.end()) return {};
    if (is_other != nullptr && is_other(text)) return {};
    return fmt::format("'{}' is not one of {}{}", text, known, other);
  };
  return {check, "(" + known + ")"};
}

CLI::Option* flag_set::list(const char* name, std::vector<std::string>& to, const char* unit,
                            const char* help) {
  return app_.add_option(name, to, help)
      ->type_name(unit)
      ->default_str("")
      ->check(not_empty())
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

CLI::Option* flag_set::numbers(const char* name, std::vector<double*> to, const char* unit,
                               const char* help) {
  const std::size_t count = to.size();
  const auto check = [count, unit](const std::string& text) {
    const auto values = numbers_in(text);
    if (values && values->size() == count) return std::string();
    return fmt::format("'{}' is not {} numbers, {}", text, count, unit);
  };
  const auto set = [to = std::move(to)](const std::string& text) {
    const auto values = *numbers_in(text);
    for (std::size_t i = 0; i < to.size(); ++i) *to[i] = values[i];
  };
  return app_.add_option_function<std::string>(name, set, help)
      ->type_name(unit)
      ->default_str("")
      ->check(CLI::Validator(check, ""));
}

CLI::Option* flag_set::numbers(const char* name, std::vector<double*> to, double least, double most,
                               const char* unit, const char* help) {
  std::vector<double> now;
  for (const double* each : to) now.push_back(*each);
  const auto check = [=](const std::string& text) -> std::string {
    const auto values = numbers_in(text);
    const auto is_within = [=](double x) { return x >= least && x <= most; };
    if (!values || std::ranges::all_of(*values, is_within)) return {};
    return fmt::format("{} is not {}, each {}", text, unit, range_text(least, most));
  };
  return numbers(name, std::move(to), unit, help)
      ->default_str(fmt::format("{}", fmt::join(now, ",")))
      ->check(CLI::Validator(check, ""));
}

CLI::Option* flag_set::numbers(const char* name, std::vector<double>& to, const char* help) {
  const auto check = [](const std::string& text) -> std::string {
    auto values = numbers_in(text);
    if (!values || !std::ranges::all_of(*values, [](double x) { return x >= 0; })) {
      return fmt::format("'{}' is not a list of numbers such as 30,60,80", text);
    }
    if (std::ranges::adjacent_find(*values, std::greater_equal()) == values->end()) return {};
    std::ranges::sort(*values);
    const auto repeated = std::ranges::unique(*values);
    values->erase(repeated.begin(), repeated.end());
    return fmt::format("{} is not in ascending order; use {}", text, fmt::join(*values, ","));
  };
  return app_
      .add_option_function<std::string>(
          name, [&to](const std::string& text) { to = *numbers_in(text); }, help)
      ->type_name("N,N,...")
      ->default_str(fmt::format("{}", fmt::join(to, ",")))
      ->check(CLI::Validator(check, ""));
}

error flag_set::unknown(const CLI::App& app) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  for (const std::string& word : app.remaining()) {
    if (!word.starts_with("-")) continue;
    const std::string name = word.substr(0, word.find('='));
    return error(errc::usage, fmt::format("there is no option {}", name))
        .hint(fmt::format("did you mean {}? See `millrace-train --help`", nearest_of(name, known)));
  }
  return error(errc::usage,
               fmt::format("'{}' is not the value of an option", app.remaining().front()))
      .hint("see `millrace-train --help`");
}

arguments flag_set::said_by(const CLI::App& app) {
  arguments all;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty()) continue;
    const std::string name = "--" + option->get_lnames().front();
    if (name == "--help" || name == "--version") continue;
    std::string value;
    // If a value was given twice, the last one counts; lists add up.
    const auto given = option->reduced_results();
    for (const std::string& each : given) value += (value.empty() ? "" : ",") + redacted(each);
    const bool is_flag = option->get_items_expected_max() == 0;
    const bool is_on_by_default = !option->get_fnames().empty();  // it has a --no-x
    if (is_flag && value == (is_on_by_default ? "true" : "false")) value.clear();
    all[name] = option->count() > 0 ? value : option->get_default_str();
  }
  return all;
}

arguments flag_set::defaults_of(const CLI::App& app) {
  arguments all;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty()) continue;
    all["--" + option->get_lnames().front()] = option->get_default_str();
  }
  return all;
}

}  // namespace millrace
