#include "pipeline/formats/class_folders.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "engine/base/error.h"
#include "engine/base/fingerprint.h"
#include "engine/base/printable.h"
#include "engine/base/words.h"
#include "engine/coroutines/scope.h"
#include "engine/files/file_system.h"
#include "engine/files/folders.h"
#include "engine/host/log.h"
#include "io/names/folder_listing.h"
#include "pipeline/images/image_decoder.h"

namespace millrace {
namespace {

bool has_extension(const std::string& name) {
  return name.find('.') != name.npos && !name.ends_with('.');
}

bool is_image_name(const std::string& path) {
  return is_image_extension(lowered(path.substr(path.rfind('.') + 1)));
}

}  // namespace

bool is_litter(std::string_view name) {
  const std::string lower = lowered(name);
  return lower == "thumbs.db" || lower == "desktop.ini" || lower == "__macosx";
}

class_names class_names_in(const std::string& root) {
  if (!is_there(root)) {
    throw failure(error(errc::not_found, "no such folder").at(root));
  }
  class_names found{.names = folders_within(root, dangling_links::refused).value()};
  std::erase_if(found.names, [](const auto& name) { return is_litter(name); });
  found.hidden = std::erase_if(found.names, [](const auto& name) { return name.starts_with('.'); });
  return found;
}

files_beside files_beside_classes(const std::string& root) {
  files_beside out;
  std::vector<std::string>& names = out.names;
  if (const int code = host_files().list(root, names); code != 0) {
    throw failure(error(kind_of(-code), "cannot read the folder")
                      .at(root)
                      .cause(-code)
                      .hint(hint_on_path(-code)));
  }
  std::erase_if(names, [&](const std::string& name) {
    struct stat s{};
    const std::string path = std::filesystem::path(root) / name;
    const bool is_file = host_files().stat(path, s) == 0 && S_ISREG(s.st_mode);
    const bool is_hidden = is_file && name.starts_with('.');
    const bool is_left = is_file && !is_hidden && is_litter(name);
    out.hidden += is_hidden ? 1 : 0;
    out.litter += is_left ? 1 : 0;
    return !is_file || is_hidden || is_left;
  });
  std::ranges::sort(names);
  return out;
}

std::string first_of(const std::vector<std::string>& names) {
  constexpr std::size_t most = 3;
  std::string out;
  for (std::size_t i = 0; i < std::min(most, names.size()); ++i) {
    out += (i > 0 ? ", " : "") + printable(names[i]);
  }
  return names.size() > most ? out + ", ..." : out;
}

void report_empty_classes(const std::vector<std::string>& empty) {
  if (empty.empty()) return;
  log_notice(fmt::format("{} without a sample, but with a label: {}",
                         counted(empty.size(), "class folder"), first_of(empty)));
}

class_folders::class_folders(const std::string& where)
    : classes(class_names_in(where).names), root(where.ends_with('/') ? where : where + '/') {
  const auto add = [&](visited one) {
    const std::string name = one.path.substr(one.path.rfind('/') + 1);
    if (name.starts_with('.') || (S_ISDIR(one.info.st_mode) && !one.is_link)) return;
    const bool is_sample = S_ISREG(one.info.st_mode) && has_extension(name) && !is_litter(name);
    (is_sample ? files : left_out).push_back(std::move(one.path));
  };
  for (const std::string& c : classes) visit_folder(root + c, add).value();
  if (std::ranges::any_of(files, is_image_name)) {
    const auto others = std::ranges::partition(files, is_image_name);
    left_out.insert(left_out.end(), others.begin(), others.end());
    files.erase(others.begin(), files.end());
  }
  if (files.empty()) {
    throw failure(
        error(errc::no_samples, "the folder has no class folders with files in them").at(where));
  }
  std::ranges::sort(files);
  for (const std::string& name : files_beside_classes(root).names) left_out.push_back(root + name);
  std::ranges::sort(left_out);
}

std::vector<std::string> class_folders::empty() const {
  std::set<std::string_view> seen;
  for (const std::string& path : files) {
    const std::string_view name = std::string_view(path).substr(root.size());
    seen.insert(name.substr(0, name.find('/')));
  }
  std::vector<std::string> out;
  std::ranges::copy_if(classes, std::back_inserter(out),
                       [&](const std::string& name) { return !seen.contains(name); });
  return out;
}

std::uint64_t class_folders::names_fingerprint() const {
  std::uint64_t names = fingerprint("");
  for (const std::string& path : files) {
    names = fingerprint("\n", fingerprint(std::string_view(path).substr(root.size()), names));
  }
  for (const std::string& name : classes) names = fingerprint("/", fingerprint(name, names));
  return names;
}

}  // namespace millrace
