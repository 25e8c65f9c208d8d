#include "train/checkpoint_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <ranges>

#include "engine/file_system.h"
#include "engine/folders.h"
#include "engine/json_tree.h"
#include "engine/written_file.h"
#include "train/files.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view partial = ".partial-";
constexpr std::string_view replaced = ".replaced-";

// A checkpoint that is being written, or removed: ".partial-step-NNNNNNNNNN".
bool is_partial_name(std::string_view name) {
  return name.starts_with(partial) && is_step_name(name.substr(partial.size()));
}
// One that is being replaced: ".replaced-step-NNNNNNNNNN".
bool is_replaced_name(std::string_view name) {
  return name.starts_with(replaced) && is_step_name(name.substr(replaced.size()));
}

// `code`: 0 or -errno.
void check(int code, const std::string& path, const char* what) {
  if (code < 0) throw_io_failed(path, what, -code);
}

std::string name_of(const std::string& path) {
  return fs::path(path).filename();
}

fs::path without_slash(const std::string& path) {
  const fs::path plain = fs::path(path).lexically_normal();
  return plain.has_filename() ? plain : plain.parent_path();
}

// Checkpoints that a run must not find in its way.
std::vector<std::string> in_the_way(const std::string& folder, const std::string& resumed) {
  auto found = folders_in(folder, is_step_name).value();
  if (resumed.empty()) return found;
  std::error_code unknown;
  const fs::path real = fs::canonical(resumed, unknown);  // of a link, what it names
  const fs::path from = without_slash(unknown ? resumed : real.string());
  const auto is_here = is_same(from.has_parent_path() ? from.parent_path() : ".", folder);
  if (!is_here) throw_io_failed(resumed, "cannot look at the checkpoint's folder", EIO);
  if (!*is_here) return found;
  std::erase_if(found, [&](const auto& p) { return name_of(p) <= from.filename().string(); });
  return found;
}

// Gives `draft` the name `whole`. What had it is left under a name that does not count, and is to
// be removed once the names are on the disk.
void give_name(const std::string& draft, const std::string& whole, const std::string& folder) {
  constexpr const char* unnamed = "cannot give the checkpoint its name";
  file_system& files = host_files();
  if (!is_there(whole)) return check(files.rename(draft, whole), whole, unnamed);
  // In one step, so that a kill leaves the one or the other.
  if (files.exchange(draft, whole) == 0) return;
  // A file system without that: give_back_replaced() takes the old one after a kill in between.
  const std::string old = fs::path(folder) / (std::string(replaced) + name_of(whole));
  remove_tree(old);
  check(files.rename(whole, old), whole, unnamed);
  const int code = files.rename(draft, whole);
  if (code != 0) files.rename(old, whole);
  check(code, whole, unnamed);
}

// What an older checkpoint helps against. A host without memory or descriptors, or a file that
// this run may not read, would cost the steps since then.
bool is_damage(errc kind) {
  return kind == errc::integrity || kind == errc::bad_state || kind == errc::io_failed;
}

// `all`: paths, oldest first; `newest`: what is wrong with the newest.
error none_to_resume(const std::vector<std::string>& all, const error& newest) {
  constexpr std::size_t most_named = 4;
  std::vector<std::string> named;
  for (const std::string& path : all | std::views::reverse | std::views::take(most_named)) {
    named.push_back(name_of(path));
  }
  return error(newest.kind(),
               fmt::format("no checkpoint there can be resumed from: {}{}; of the newest: {}",
                           fmt::join(named, ", "), all.size() > most_named ? ", ..." : "",
                           newest.what()))
      .at(newest.where())
      .hint(
          "train from the start with --overwrite instead of --resume, which sets them aside, or "
          "into another --checkpoint-dir");
}

// Checkpoints that lost their names to others, which a kill kept from getting them.
void give_back_replaced(const std::string& folder) {
  for (const std::string& p : folders_in(folder, is_replaced_name).value()) {
    const std::string whole = fs::path(folder) / name_of(p).substr(replaced.size());
    if (!is_there(whole)) host_files().rename(p, whole);
  }
}

}  // namespace

std::optional<chosen_checkpoint> choose_checkpoint(
    const std::string& folder, const std::string& resume,
    const std::function<void(const chosen_checkpoint&)>& check,
    const std::function<void(const std::string&)>& note) {
  if (resume != "auto") return chosen_checkpoint{resume, read_checkpoint(resume)};
  give_back_replaced(folder);
  const auto all = checkpoints_in(folder);
  if (all.empty()) return std::nullopt;
  std::optional<error> newest;
  for (const std::string& path : all | std::views::reverse) {
    try {
      chosen_checkpoint found{path, read_checkpoint(path)};
      check(found);
      return found;
    } catch (const failure& f) {
      if (!is_damage(f.kind())) throw;
      if (!newest) newest = f.why();
      note(fmt::format("ignoring {}: {}", path, f.what()));
    }
  }
  throw failure(none_to_resume(all, *newest));
}

void check_folder(const std::string& folder, const std::string& resumed, bool may_set_aside) {
  check(make_folders(folder), folder, "cannot make the folder for checkpoints");
  const std::string trial = fs::path(folder) / fmt::format("{}trial-{}", partial, getpid());
  const int made = host_files().make_folder(trial, 0777);
  if (made != -EEXIST) check(made, folder, "cannot write checkpoints");
  host_files().remove_folder(trial);
  const auto others = in_the_way(folder, resumed);
  if (others.empty() || may_set_aside) return;
  throw failure(
      error(errc::usage,
            resumed.empty()
                ? fmt::format("the folder holds {} checkpoint{} of another run", others.size(),
                              others.size() == 1 ? "" : "s")
                : fmt::format("the folder holds checkpoints that are not those before {}", resumed))
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
  sync_names_in(folder);  // so that what is moved there is not lost with it
  for (const std::string& p : others) {
    check(host_files().rename(p, fs::path(aside) / name_of(p)), p, cannot);
  }
  sync_names_in(aside);
  sync_names_in(folder);
  return aside;
}

void write_checkpoint(const std::string& folder, const std::string& name,
                      const checkpoint_files& files) {
  const std::string draft = fs::path(folder) / (std::string(partial) + name);
  try {
    remove_tree(draft);
    check(make_folders(draft), draft, "cannot make the checkpoint's folder");
    for (const auto& [file, text] : files) write_file(fs::path(draft) / file, text);
    sync_names_in(draft);
    give_name(draft, fs::path(folder) / name, folder);
  } catch (const failure&) {
    remove_tree(draft);
    throw;
  }
  sync_names_in(folder);
  const auto left = folders_in(
      folder, [](std::string_view n) { return is_partial_name(n) || is_replaced_name(n); });
  if (!left) return;  // the checkpoint is there, and the next one removes them
  for (const std::string& p : *left) remove_tree(p);
}

void remove_old(const std::string& folder, const std::string& run, std::size_t keep,
                const std::string& resumed) {
  const auto all = folders_in(folder, is_step_name);
  if (!all) return;
  const std::string from = without_slash(resumed);
  std::vector<std::string> old;
  for (std::size_t i = 0; i + keep < all->size(); ++i) {
    if (!resumed.empty() && is_same((*all)[i], from) != false) continue;
    const auto text = read_whole_file(fs::path((*all)[i]) / "train.json");
    if (!text) continue;  // not one of ours
    const auto meta = json_tree::parse(*text);
    if (!meta || meta->text_of("run") != run) continue;
    // First out of the names that count, also on the disk, so that no part of one is left.
    const std::string gone = fs::path(folder) / (std::string(partial) + name_of((*all)[i]));
    if (host_files().rename((*all)[i], gone) == 0) old.push_back(gone);
  }
  if (old.empty() || sync_folder(folder) != 0) return;  // write_checkpoint() removes them
  for (const std::string& p : old) remove_tree(p);
}

void add_to_checkpoint(const std::string& path, const std::string& name, const std::string& text) {
  write_whole_file((fs::path(path) / name).string(), text, "validation's figures");
}

}  // namespace millrace
