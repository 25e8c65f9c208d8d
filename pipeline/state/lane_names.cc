#include "pipeline/state/lane_names.h"

#include <fmt/format.h>

namespace millrace {
namespace {

constexpr std::string_view begin = "lane";

}  // namespace

std::string lane_record_name(std::int64_t lane, std::string_view record) {
  return fmt::format("{}{}/{}", begin, lane, record);
}

std::pair<std::string_view, std::string_view> split_lane_name(std::string_view name) {
  const auto slash = name.starts_with(begin) ? name.find('/') : name.npos;
  if (slash == name.npos) return {};
  const auto number = name.substr(begin.size(), slash - begin.size());
  if (number.empty() || number.find_first_not_of("0123456789") != number.npos) return {};
  return {name.substr(0, slash + 1), name.substr(slash + 1)};
}

bool is_name_of_lanes(std::string_view name) {
  return name.starts_with(begin);
}

}  // namespace millrace
