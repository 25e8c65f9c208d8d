#include "train/checkpoints/checkpoint_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <ranges>

namespace millrace {
namespace {

// Whether falling back to an older checkpoint helps. It does not against lack of memory, of
// descriptors or of permissions, and would cost the steps since then.
bool is_damage(errc kind) {
  return kind == errc::integrity || kind == errc::bad_state || kind == errc::io_failed;
}

// `all`: paths, oldest first; `newest`: what is wrong with the newest.
error none_to_resume(const std::vector<std::string>& all, const error& newest) {
  constexpr std::size_t most_named = 4;
  std::vector<std::string> named;
  for (const std::string& path : all | std::views::reverse | std::views::take(most_named)) {
    named.push_back(std::filesystem::path(path).filename().string());
  }
  return error(newest.kind(),
               fmt::format("no checkpoint there can be resumed: {}{}; the newest: {}",
                           fmt::join(named, ", "), all.size() > most_named ? ", ..." : "",
                           newest.what()))
      .at(newest.where())
      .hint(
          "start over with --overwrite instead of --resume, which sets them aside, or use "
          "another --checkpoint-dir");
}

}  // namespace

std::optional<chosen_checkpoint> newest_sound(
    const std::vector<std::string>& all,
    const std::function<checkpoint_files(const std::string& path)>& read,
    const checkpoint_check& check, const choice_note& note) {
  if (all.empty()) return std::nullopt;
  std::optional<error> newest;
  for (const std::string& path : all | std::views::reverse) {
    try {
      chosen_checkpoint found{path, read(path)};
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

}  // namespace millrace
