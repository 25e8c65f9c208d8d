#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/result.h"
#include "engine/base/setting.h"

namespace millrace {

// The variables of the environment that millrace reads, as they are set. Immutable; made once, near
// main().
class settings {
 public:
  // Reads `environment` (like main's third argument, ends with a null pointer): all MILLRACE_
  // variables, which must be `known`, and the `foreign` variables of other programs. An empty one
  // counts as unset. Fails with bad_setting for a variable that is unknown or out of range.
  static result<settings> from_environment(const char* const* environment,
                                           std::span<const setting> known,
                                           std::span<const foreign_variable> foreign = {});

  // nullptr if it is not set.
  const setting_value* find(std::string_view name) const;
  // Variables of other programs with their values, some of which are secrets.
  const std::map<std::string, std::string>& foreign() const { return foreign_; }

 private:
  std::map<std::string, setting_value, std::less<>> values_;
  std::map<std::string, std::string> foreign_;
};

}  // namespace millrace
