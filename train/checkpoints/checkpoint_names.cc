#include "train/checkpoints/checkpoint_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/files/folders.h"

namespace millrace {
namespace {

constexpr std::size_t step_digits = 10;

}  // namespace

bool is_step_name(std::string_view name) {
  if (!name.starts_with(step_prefix)) return false;
  name.remove_prefix(step_prefix.size());
  return name.size() == step_digits &&
         std::ranges::all_of(name, [](unsigned char c) { return std::isdigit(c) != 0; });
}

bool is_partial_name(std::string_view name) {
  return name.starts_with(partial_prefix) && is_step_name(name.substr(partial_prefix.size()));
}

bool is_replaced_name(std::string_view name) {
  return name.starts_with(replaced_prefix) && is_step_name(name.substr(replaced_prefix.size()));
}

bool is_name_of_run(std::string_view name) {
  return is_step_name(name) || is_partial_name(name) || is_replaced_name(name) || name == lock_name;
}

result<std::vector<std::string>> folders_in(const std::string& folder,
                                            bool (*wanted)(std::string_view)) {
  const auto names = folders_within(folder, dangling_links::passed_over);
  if (!names && names.error().kind() == errc::not_found) return std::vector<std::string>();
  if (!names) return names.error();
  std::vector<std::string> found;
  for (const std::string& name : *names) {
    if (wanted(name)) found.push_back(std::filesystem::path(folder) / name);
  }
  return found;
}

std::string step_name(std::int64_t step) {
  return fmt::format("{}{:010}", step_prefix, step);
}

std::vector<std::string> checkpoints_in(const std::string& folder) {
  return folders_in(folder, is_step_name).value();
}

}  // namespace millrace
