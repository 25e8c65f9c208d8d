#include "engine/base/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "engine/base/spelling.h"

namespace millrace {
namespace {

constexpr std::string_view prefix = "MILLRACE_";

// "did you mean X? ", where one is near.
std::string did_you_mean(std::string_view name, std::span<const setting> known) {
  std::vector<std::string> names;
  names.reserve(known.size());
  for (const setting& s : known) names.emplace_back(s.name);
  const std::string near = near_of(name, names, prefix.size());
  return near.empty() ? "" : fmt::format("did you mean {}? ", near);
}

}  // namespace

result<settings> settings::from_environment(const char* const* environment,
                                            std::span<const setting> known,
                                            std::span<const foreign_variable> foreign) {
  settings made;
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry(*environment);
    const auto equals = entry.find('=');
    const auto name = entry.substr(0, equals);
    const std::string given(equals == entry.npos ? "" : entry.substr(equals + 1));
    if (std::ranges::find(foreign, name, &foreign_variable::name) != foreign.end()) {
      made.foreign_[std::string(name)] = given;
    }
    if (!name.starts_with(prefix)) continue;
    const auto about = std::ranges::find(known, name, &setting::name);
    if (about == known.end()) {
      return error(errc::bad_setting, fmt::format("{} is not a variable of millrace", name))
          .hint(did_you_mean(name, known) + "`millrace env` lists them all");
    }
    if (given.empty() && equals != entry.npos) continue;
    auto value = parse_setting(*about, given);
    if (!value) {
      return error(errc::bad_setting, fmt::format("{}='{}' cannot be used", name, redacted(given)))
          .hint("set it to " + range_of(*about) + ", or unset it");
    }
    made.values_[std::string(name)] = std::move(*value);
  }
  return made;
}

const setting_value* settings::find(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? nullptr : &found->second;
}

}  // namespace millrace
