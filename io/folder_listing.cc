#include "io/folder_listing.h"

#include <glob.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <memory>

#include "io/url.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

// The path, where a URL may name many local files.
std::string path_of_many(const std::string& name) {
  if (!name.ends_with('/') && name.find('*') == std::string::npos) return {};
  const auto where = parse_url(name);
  return where && where->scheme == "file" ? where->path : std::string();
}

bool is_archive(const std::string& name) {
  static constexpr std::array endings = {".tar", ".tgz", ".tbz2", ".txz", ".tzst"};
  return std::ranges::any_of(endings, [&](const char* e) { return name.ends_with(e); }) ||
         name.find(".tar.") != std::string::npos;
}

result<std::vector<std::string>> archives_in(const std::string& folder) {
  std::vector<std::string> out;
  std::error_code failed;
  for (auto it = fs::directory_iterator(folder, failed); !failed && it != fs::directory_iterator();
       it.increment(failed)) {
    const std::string name = it->path().filename();
    std::error_code unknown;
    if (is_archive(name) && !it->is_directory(unknown)) out.push_back(folder + name);
  }
  if (failed) {
    const bool is_missing = failed == std::errc::no_such_file_or_directory;
    return error(is_missing ? errc::not_found : errc::not_allowed, "this folder cannot be listed")
        .at(folder)
        .cause(failed.value());
  }
  return out;
}

result<std::vector<std::string>> matches_of(const std::string& pattern) {
  // Of what glob() knows, the star alone.
  std::string escaped;
  for (const char c : pattern) {
    if (c == '?' || c == '[' || c == '\\') escaped += '\\';
    escaped += c;
  }
  glob_t found{};
  const auto matters = [](const char*, int e) { return e == ENOENT || e == ENOTDIR ? 0 : 1; };
  const int outcome = glob(escaped.c_str(), GLOB_NOSORT, matters, &found);
  const std::unique_ptr<glob_t, decltype(&globfree)> owner(&found, &globfree);
  if (outcome == GLOB_NOSPACE) throw std::bad_alloc();
  if (outcome == GLOB_ABORTED) {
    return error(errc::not_allowed, "a folder of this pattern cannot be listed").at(pattern);
  }
  return std::vector<std::string>(found.gl_pathv, found.gl_pathv + found.gl_pathc);
}

result<std::vector<std::string>> files_of(const std::string& path) {
  std::error_code unknown;
  if (!path.ends_with('/') && fs::exists(path, unknown)) return std::vector{path};
  auto found = path.find('*') == std::string::npos ? archives_in(path) : matches_of(path);
  if (!found) return found;
  if (found->empty()) {
    return error(errc::not_found, path.ends_with('/') ? "no archive is in this folder"
                                                      : "no file has a name like that")
        .at(path);
  }
  std::ranges::sort(*found);
  return found;
}

}  // namespace

result<std::vector<std::string>> with_folders(std::vector<std::string> urls) {
  if (std::ranges::all_of(urls, [](const auto& u) { return path_of_many(u).empty(); })) return urls;
  std::vector<std::string> out;
  for (std::string& url : urls) {
    const std::string path = path_of_many(url);
    if (path.empty()) {
      out.push_back(std::move(url));
      continue;
    }
    auto files = files_of(path);
    if (!files) return files;
    std::ranges::move(*files, std::back_inserter(out));
  }
  return out;
}

}  // namespace millrace
