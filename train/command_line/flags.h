#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "train/checkpoints/arguments.h"

namespace millrace {

// Common behaviour of command-line options: each shows its group, unit, range and default; an
// option given twice has its last value; an error is one line.
class flag_set {
 public:
  explicit flag_set(CLI::App& app);

  // The group of the options added after this.
  void group(const std::string& name) { app_.option_defaults()->group(name); }

  template <class T>
  CLI::Option* value(const char* name, T& to, const char* unit, const char* help) {
    return app_.add_option(name, to, help)->type_name(unit)->check(not_empty());
  }
  template <class T>
  CLI::Option* number(const char* name, T& to, double least, double most, const char* unit,
                      const char* help) {
    return value(name, to, unit, help)->check(in_range(least, most, std::is_integral_v<T>));
  }
  template <class T>
  CLI::Option* number(const char* name, T& to, double least, const char* unit, const char* help) {
    const bool is_whole = std::is_integral_v<T>;
    const double most = is_whole ? largest_integer(sizeof(T)) : largest_real();
    return value(name, to, unit, help)->check(in_range(least, most, is_whole));
  }
  // Several values, in one option or in repeated ones, which add up.
  CLI::Option* list(const char* name, std::vector<std::string>& to, const char* unit,
                    const char* help);
  // Comma-separated numbers, 0 or more, in ascending order.
  CLI::Option* numbers(const char* name, std::vector<double>& to, const char* help);
  // Comma-separated numbers, as many as `to` has.
  CLI::Option* numbers(const char* name, std::vector<double*> to, const char* unit,
                       const char* help);
  // The same with their values shown as the default, each from `least` to `most`.
  CLI::Option* numbers(const char* name, std::vector<double*> to, double least, double most,
                       const char* unit, const char* help);
  // A flag that is off by default; "--x,!--no-x" for one that is on, which the help shows, and can
  // be switched off.
  CLI::Option* flag(const char* name, bool& to, const char* help) {
    return app_.add_flag(name, to, to ? std::string(help) + " (on)" : help);
  }
  // One of these names.
  template <class T>
  CLI::Option* choice(const char* name, T& to, const std::map<std::string, T>& names,
                      const char* help) {
    std::vector<std::string> known;
    std::string now;
    for (const auto& [each, is] : names) {
      known.push_back(each);
      if (is == to) now = each;
    }
    return app_
        .add_option_function<std::string>(
            name, [&to, names](const std::string& given) { to = names.at(given); }, help)
        ->type_name("NAME")
        ->default_str(now)
        ->check(one_of(known));
  }
  // `is_other`: whether a text is a value too, without being one of the names; `other` says which.
  CLI::Option* choice(const char* name, std::string& to, const std::vector<std::string>& names,
                      const char* help, bool (*is_other)(const std::string&) = nullptr,
                      const char* other = "") {
    return value(name, to, "NAME", help)->check(one_of(names, is_other, other));
  }

  // The error for words of a command line that are not options, with the nearest option's name.
  static error unknown(const CLI::App& app);
  // Every option's value, with secrets removed from URLs. Empty for a flag at its default, given or
  // not, because older versions wrote flags that were not given so.
  static arguments said_by(const CLI::App& app);
  // The default of every option, in the form of said_by().
  static arguments defaults_of(const CLI::App& app);

 private:
  // A variable of a script that is not set would otherwise switch the option off.
  static CLI::Validator not_empty();
  static CLI::Validator in_range(double least, double most, bool is_whole);
  static CLI::Validator one_of(const std::vector<std::string>& names,
                               bool (*is_other)(const std::string&) = nullptr,
                               const char* other = "");
  static double largest_integer(std::size_t bytes);
  static double largest_real();

  CLI::App& app_;
};

}  // namespace millrace
