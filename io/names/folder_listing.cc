#include "io/names/folder_listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "engine/files/file_system.h"
#include "engine/files/folders.h"
#include "io/names/shard_name.h"
#include "io/names/url.h"

namespace millrace {
namespace {

// The path of a URL that may name many local files; empty for any other. A folder needs no '/' at
// its end, unless it is named like an archive: names of archives are not looked up, since there may
// be a million.
std::string path_of_many(const std::string& name) {
  const bool says_so = name.ends_with('/') || name.find('*') != std::string::npos;
  const bool may_be_folder = !is_shard_name(name.substr(name.rfind('/') + 1));
  if (!says_so && !may_be_folder) return {};
  const auto where = parse_url(name);
  if (!where || where->scheme != "file") return {};
  if (!says_so && !is_folder(where->path)) return {};
  return says_so ? where->path : where->path + "/";
}

result<std::vector<std::string>> archives_in(const std::string& folder) {
  std::vector<std::string> names;
  if (const int code = host_files().list(folder, names); code != 0) {
    return error(kind_of(-code), "this folder cannot be listed")
        .at(folder)
        .cause(-code)
        .hint(hint_on_path(-code));
  }
  std::vector<std::string> out;
  for (const std::string& name : names) {
    if (is_shard_name(name) && !is_folder(folder + name)) out.push_back(folder + name);
  }
  return out;
}

// Adds what the pattern matches, from its `from`-th character on, within `folder` (which ends with
// '/', or is empty).
result<void> add_matches(const std::string& folder, const std::string& pattern, std::size_t from,
                         std::vector<std::string>& out) {
  const auto star = pattern.find('*', from);
  if (star == pattern.npos) {
    const std::string path = folder + pattern.substr(from);
    struct stat s{};
    const int code = host_files().stat(path, s);
    if (code != 0 && code != -ENOENT && code != -ENOTDIR && code != -ENAMETOOLONG) {
      return error(kind_of(-code), "cannot examine a path that this pattern matches")
          .at(path)
          .cause(-code)
          .hint(hint_on_path(-code));
    }
    if (code == 0 && (S_ISREG(s.st_mode) || S_ISDIR(s.st_mode))) out.push_back(path);
    return {};
  }
  // The part before the component with the star is literal.
  const auto slash = pattern.rfind('/', star);
  const auto begin = slash == pattern.npos || slash < from ? from : slash + 1;
  const auto end = std::min(pattern.find('/', star), pattern.size());
  const std::string here = folder + pattern.substr(from, begin - from);
  std::vector<std::string> names;
  const int code = host_files().list(here.empty() ? "." : here, names);
  if (code == -ENOENT || code == -ENOTDIR) return {};
  if (code != 0) {
    return error(kind_of(-code), "a folder of this pattern cannot be listed")
        .at(pattern)
        .cause(-code)
        .hint(hint_on_path(-code));
  }
  for (const std::string& name : names) {
    if (!matches_pattern(name, std::string_view(pattern).substr(begin, end - begin))) continue;
    // A name without a folder may look like a URL, or like stdin.
    const bool is_path = !here.empty() || (name != "-" && name.find(':') == name.npos);
    const std::string path = is_path ? here + name : "./" + name;
    if (end == pattern.size()) {
      out.push_back(path);
    } else if (struct stat s{};
               host_files().stat(path, s) == -ENOENT && host_files().stat(path, s, false) == 0) {
      return error(errc::not_found, "a link to nothing, which may be to a folder")
          .at(path)
          .hint("mount its target, or remove the link");
    } else if (auto below = add_matches(path + "/", pattern, end + 1, out); !below) {
      return below;
    }
  }
  return {};
}

result<std::vector<std::string>> matches_of(const std::string& pattern) {
  std::vector<std::string> out;
  if (auto added = add_matches("", pattern, 0, out); !added) return added.error();
  return out;
}

// Whether a file has exactly that name. If it cannot be examined, the listing says why.
bool is_one_file(const std::string& path) {
  struct stat s{};
  return !path.ends_with('/') && host_files().stat(path, s) == 0 && S_ISREG(s.st_mode);
}

result<std::vector<std::string>> files_listed(const std::string& path) {
  auto found = path.find('*') == std::string::npos ? archives_in(path) : matches_of(path);
  if (!found) return found;
  if (found->empty()) {
    return error(errc::not_found, path.ends_with('/') ? "no archive is in this folder"
                                                      : "no file matches this pattern")
        .at(path)
        .hint(path.ends_with('/')
                  ? fmt::format("{}; for archives in its subfolders, write FOLDER/*/*.tar",
                                shard_names_told)
                  : "check the path");
  }
  std::ranges::sort(*found);
  return found;
}

}  // namespace

const char* hint_on_path(int why) {
  switch (why) {
    case ENOENT:
    case ENOTDIR:
      return "check the path";
    case EACCES:
    case EPERM:
      return "check the permissions";
    case ELOOP:
      return "its links lead in a circle";
    case EMFILE:
    case ENFILE:
      return "raise `ulimit -n`";
    case ENAMETOOLONG:
      return "use a shorter path";
    default:
      return "check the disk (dmesg, smartctl)";
  }
}

result<std::vector<std::string>> with_folders(std::vector<std::string> urls, bool* lists_any) {
  if (std::ranges::all_of(urls, [](const auto& u) { return path_of_many(u).empty(); })) return urls;
  std::vector<std::string> out;
  for (std::string& url : urls) {
    const std::string path = path_of_many(url);
    if (path.empty()) {
      out.push_back(std::move(url));
      continue;
    }
    if (is_one_file(path)) {
      out.push_back(path);
      continue;
    }
    if (lists_any != nullptr) *lists_any = true;
    auto files = files_listed(path);
    if (!files) return files;
    std::ranges::move(*files, std::back_inserter(out));
  }
  return out;
}

std::vector<std::string> local_paths(std::span<const std::string> urls) {
  std::vector<std::string> out;
  for (const std::string& url : urls) {
    const auto where = parse_url(url);
    if (where && where->scheme == "file") out.push_back(where->path);
    if (where && where->scheme == "-") out.emplace_back("/dev/stdin");  // perhaps a file
  }
  return out;
}

}  // namespace millrace
