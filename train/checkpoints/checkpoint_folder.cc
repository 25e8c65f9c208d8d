#include "train/checkpoints/checkpoint_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <ranges>

#include "engine/base/json_tree.h"
#include "engine/files/file_system.h"
#include "engine/files/folders.h"
#include "engine/files/written_file.h"
#include "engine/host/log.h"
#include "train/files.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

// `code`: 0 or -errno.
void check(int code, const std::string& path, const char* what) {
  if (code < 0) throw_failed_call(path, what, -code);
}

std::string name_of(const std::string& path) {
  return fs::path(path).filename();
}

fs::path without_slash(const std::string& path) {
  const fs::path plain = fs::path(path).lexically_normal();
  return plain.has_filename() ? plain : plain.parent_path();
}

// Whether both are the same folder. Throws if that cannot be determined.
bool are_same(const std::string& one, const std::string& other) {
  const auto is = is_same(one, other);
  if (!is) throw_failed_call(one, "cannot examine the checkpoint's folder", EIO);
  return *is;
}

// The name in `folder` of the checkpoint that the run was resumed from: the path itself, or one
// connected with it by links in either direction. Empty: it is not in the folder.
std::string name_in(const std::string& folder, const std::vector<std::string>& found,
                    const std::string& resumed) {
  if (!is_there(resumed)) throw_failed_call(resumed, "cannot find the checkpoint", ENOENT);
  const fs::path given = without_slash(resumed);
  const fs::path parent = given.has_parent_path() ? given.parent_path() : ".";
  if (is_step_name(given.filename().string()) && are_same(parent, folder)) return given.filename();
  for (const std::string& p : found | std::views::reverse) {
    if (are_same(p, resumed)) return name_of(p);
  }
  return {};
}

// Checkpoints that would be in a run's way; never the one that it was resumed from.
std::vector<std::string> in_the_way(const std::string& folder, const std::string& resumed) {
  auto found = folders_in(folder, is_step_name).value();
  if (resumed.empty()) return found;
  const std::string from = name_in(folder, found, resumed);
  std::erase_if(found, [&](const auto& p) { return name_of(p) <= from || are_same(p, resumed); });
  return found;
}

// train.json of a folder; empty: none that can be read.
std::string meta_of(const std::string& checkpoint) {
  const std::string file = fs::path(checkpoint) / meta_name;
  struct stat s{};
  if (host_files().stat(file, s) != 0 || !S_ISREG(s.st_mode)) return {};
  const auto text = read_whole_file(file);
  return text ? *text : "";
}

// Renames files of others so that no run takes them for a checkpoint, and reports it with `why`.
void leave_to_others(const std::string& path, const char* why) {
  const fs::path where(path);
  const std::string name = where.filename().string();
  // Without the prefix of a checkpoint being written or replaced.
  const std::string step = name.substr(name.starts_with('.') ? name.find('-') + 1 : 0);
  for (int n = 1;; ++n) {
    const std::string left =
        where.parent_path() / (n == 1 ? "left-of-" + step : fmt::format("left-of-{}-{}", step, n));
    struct stat s{};
    const int code = host_files().stat(left, s, false);
    if (code == 0) continue;
    if (code != -ENOENT || host_files().rename(path, left) != 0)
      return;  // the next one tries again
    log_notice(fmt::format("{} {}", left, why));
    return;
  }
}

// Whether there is something that no run made: neither a folder nor a link to one.
bool is_others(const std::string& path) {
  struct stat s{};
  const bool is_there = host_files().stat(path, s, false) == 0;
  return is_there && !S_ISDIR(s.st_mode) && !S_ISLNK(s.st_mode);
}
constexpr const char* had_our_name = "had the name of a checkpoint but is not one";

// Removes a checkpoint whose name does not count (any more), whole or not; of a link, only the
// link. The next call removes the remains of a failed one.
void remove_checkpoint(const std::string& path) {
  file_system& files = host_files();
  struct stat s{};
  if (files.stat(path, s, false) != 0) return;
  if (is_others(path)) return leave_to_others(path, had_our_name);
  std::vector<std::string> names;
  if (!S_ISDIR(s.st_mode) || files.list(path, names) != 0) {
    if (!S_ISDIR(s.st_mode)) files.unlink(path);
    return;
  }
  std::size_t removed = 0;
  auto own = own_files(names, meta_of(path));
  // The list itself last.
  std::ranges::partition(own, [](const auto& name) { return name != meta_name; });
  for (const std::string& name : own) {
    const std::string file = fs::path(path) / name;
    if (files.stat(file, s, false) != 0) return;
    if (!S_ISREG(s.st_mode)) continue;  // a folder, say, that has the name
    if (files.unlink(file) != 0) return;
    ++removed;
  }
  if (removed == names.size()) {
    files.remove_folder(path);
  } else if (sync_folder(path) == 0) {  // removed files do not come back under that name
    leave_to_others(path, "has files of a removed checkpoint that no run wrote");
  }
}

// Renames `draft` to `whole`. What had that name gets one that does not count, to be removed once
// the names are on disk.
void give_name(const std::string& draft, const std::string& whole, const std::string& folder) {
  constexpr const char* unnamed = "cannot give the checkpoint its name";
  file_system& files = host_files();
  if (is_others(whole)) leave_to_others(whole, had_our_name);
  struct stat s{};  // of a link itself, which may be dangling
  if (files.stat(whole, s, false) != 0) return check(files.rename(draft, whole), whole, unnamed);
  // Atomically, so that a kill leaves one or the other.
  if (files.exchange(draft, whole) == 0) return;
  // Without atomic exchange, give_back_replaced() restores the old one after a kill in between.
  const std::string old = fs::path(folder) / (std::string(replaced_prefix) + name_of(whole));
  remove_checkpoint(old);
  check(files.rename(whole, old), whole, unnamed);
  const int code = files.rename(draft, whole);
  if (code != 0) files.rename(old, whole);
  check(code, whole, unnamed);
}

// Restores the names of checkpoints that were being replaced when a kill came.
void give_back_replaced(const std::string& folder) {
  for (const std::string& p : folders_in(folder, is_replaced_name).value()) {
    const std::string whole = fs::path(folder) / name_of(p).substr(replaced_prefix.size());
    if (!is_there(whole)) host_files().rename(p, whole);
  }
}

}  // namespace

std::optional<chosen_checkpoint> choose_checkpoint(
    const std::string& folder, const std::function<void(const chosen_checkpoint&)>& check,
    const std::function<void(const std::string&)>& note) {
  give_back_replaced(folder);
  return newest_sound(checkpoints_in(folder), read_checkpoint, check, note);
}

void check_folder(const std::string& folder, const std::string& resumed, bool may_set_aside) {
  if (is_checkpoint(folder)) {
    throw failure(error(errc::usage, "this is a checkpoint, not a folder of checkpoints")
                      .at(folder)
                      .hint("give it to --resume, and another folder as --checkpoint-dir"));
  }
  check(make_folders(folder), folder, "cannot create the folder for checkpoints");
  const std::string trial = fs::path(folder) / fmt::format("{}trial-{}", partial_prefix, getpid());
  const int made = host_files().make_folder(trial, 0777);
  if (made != -EEXIST) check(made, folder, "cannot write checkpoints");
  host_files().remove_folder(trial);
  const auto others = in_the_way(folder, resumed);
  if (others.empty() || may_set_aside) return;
  throw failure(
      error(errc::usage,
            resumed.empty()
                ? fmt::format("the folder holds {} checkpoint{} of an earlier run", others.size(),
                              others.size() == 1 ? "" : "s")
                : fmt::format("the folder holds checkpoints other than those before {}", resumed))
          .at(others.back())
          .hint(fmt::format("{}--overwrite sets them aside, or use another --checkpoint-dir",
                            resumed.empty() ? "--resume auto resumes the newest, " : "")));
}

std::string set_aside_newer(const std::string& folder, const std::string& resumed) {
  const auto others = in_the_way(folder, resumed);
  if (others.empty()) return {};
  constexpr const char* cannot = "cannot set older checkpoints aside";
  std::string aside;
  int made = -EEXIST;
  for (int n = 1; made == -EEXIST; ++n) {
    aside = fs::path(folder) / fmt::format("set-aside-{}", n);
    made = host_files().make_folder(aside, 0777);
  }
  check(made, aside, cannot);
  sync_names_in(folder);  // before checkpoints are moved there
  for (const std::string& p : others) {
    check(host_files().rename(p, fs::path(aside) / name_of(p)), p, cannot);
  }
  sync_names_in(aside);
  sync_names_in(folder);
  return aside;
}

bool is_checkpoint_in(const std::string& folder, const std::string& path, std::int64_t step) {
  std::error_code why;
  const fs::path place = fs::canonical(path, why);
  return !why && place.filename() == step_name(step) &&
         is_same(place.parent_path(), folder) == true;
}

void write_checkpoint(const std::string& folder, const std::string& name,
                      const checkpoint_files& files) {
  const std::string draft = fs::path(folder) / (std::string(partial_prefix) + name);
  try {
    remove_checkpoint(draft);
    check(make_folders(draft), draft, "cannot create the checkpoint's folder");
    for (const auto& [file, text] : files) write_file(fs::path(draft) / file, text);
    sync_names_in(draft);
    give_name(draft, fs::path(folder) / name, folder);
  } catch (const failure&) {
    remove_checkpoint(draft);
    throw;
  }
  sync_names_in(folder);
  remove_checkpoint(draft);  // whatever had the name, even a link
  const auto left = folders_in(
      folder, [](std::string_view n) { return is_partial_name(n) || is_replaced_name(n); });
  if (!left) return;  // the checkpoint is written; the next call removes them
  for (const std::string& p : *left) remove_checkpoint(p);
}

void remove_old(const std::string& folder, const std::string& run, std::size_t keep,
                const std::string& resumed) {
  const auto all = folders_in(folder, is_step_name);
  if (!all) return;
  const std::string from = without_slash(resumed);
  std::vector<std::string> old;
  for (std::size_t i = 0; i + keep < all->size(); ++i) {
    if (!resumed.empty() && is_same((*all)[i], from) != false) continue;
    const auto meta = json_tree::parse(meta_of((*all)[i]));  // every run writes one
    if (!meta || meta->text_of("run") != run) continue;
    // First renamed, and synced, so that no partial checkpoint keeps a name that counts.
    const std::string gone = fs::path(folder) / (std::string(partial_prefix) + name_of((*all)[i]));
    if (host_files().rename((*all)[i], gone) == 0) old.push_back(gone);
  }
  if (old.empty() || sync_folder(folder) != 0) return;  // write_checkpoint() removes them
  for (const std::string& p : old) remove_checkpoint(p);
}

void add_to_checkpoint(const std::string& path, const std::string& name, const std::string& text) {
  write_whole_file((fs::path(path) / name).string(), text, "validation's figures");
}

}  // namespace millrace
