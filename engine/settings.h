#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "engine/result.h"

namespace millrace {

enum class setting_type { size, integer, seconds, choice, choice_or_integer, text };

// One MILLRACE_ variable.
struct setting {
  std::string_view name;
  setting_type type;
  std::string_view initial;  // as a user writes it; "auto" where the host decides
  double least;              // in bytes, units or seconds; for a choice unused
  double most;
  std::string_view choices;  // "auto|uring|pread"
  std::string_view meaning;
};

// Every variable that millrace knows, in the order in which `millrace env` lists them.
std::span<const setting> all_settings();

// The variables of other programs that millrace reads: proxies, and credentials of object stores.
std::span<const std::string_view> foreign_variables();

// The variables as they are set. Immutable; made once, near main().
class settings {
 public:
  // Reads all MILLRACE_ variables of `environment` (as the third argument of main, ends with a null
  // pointer). Fails with bad_setting for one that is unknown or out of range.
  static result<settings> from_environment(const char* const* environment);

  // The value as set, or the initial value where it is not set. `name` must be in the table.
  const std::string& text(std::string_view name) const;
  bool is_set(std::string_view name) const;
  // 0 for "auto", and for a choice where there could be a number.
  std::size_t bytes(std::string_view name) const;
  int integer(std::string_view name) const;
  std::chrono::milliseconds seconds(std::string_view name) const;
  // Those of foreign_variables() that are set, with their values, some of which are secrets.
  const std::map<std::string, std::string>& foreign() const { return foreign_; }

 private:
  settings();
  struct value {
    std::string text;
    double number = 0;
    bool set = false;
  };
  const value& find(std::string_view name) const;
  std::map<std::string, value, std::less<>> values_;
  std::map<std::string, std::string> foreign_;
};

}  // namespace millrace
