#include "tools/index/update_index.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/base/json_tree.h"
#include "engine/base/nesting.h"
#include "engine/base/printable.h"
#include "engine/files/file_system.h"
#include "engine/files/folders.h"
#include "engine/files/written_file.h"
#include "io/names/url_scheme.h"
#include "pipeline/run/engine.h"
#include "pipeline/shards/shard_index.h"
#include "pipeline/wids/read_index.h"
#include "pipeline/wids/sidecar.h"
#include "tools/index/index_files.h"

namespace millrace {
namespace {

using nlohmann::ordered_json;

// A copy replaces a link itself, not the file that it leads to.
void remove_link(const std::string& path) {
  std::error_code failed;
  if (std::filesystem::is_symlink(path, failed)) std::filesystem::remove(path, failed);
}

// The copy's name is not the user's choice, so it must be free or belong to such a copy. Throws
// `failure` (usage) that says what is there.
void check_copy(const std::string& path, const file_kind& kind,
                std::span<const std::string> originals) {
  try {
    check_output(path, kind, originals);
  } catch (const failure& f) {
    if (f.kind() != errc::usage) throw;
    std::error_code is_none;
    const auto target = std::filesystem::read_symlink(path, is_none);
    const std::string what = !is_none          ? "a link to " + printable(target.string())
                             : is_folder(path) ? "a folder"
                                               : fmt::format("a file that is not {}", kind.name);
    throw failure(error(errc::usage, fmt::format("{} is in the place of the backup copy", what))
                      .at(path)
                      .hint("move it away, or remove it"));
  }
}

// Writes a copy of the file `of`, readable only by those who may read `of`.
void write_copy(const std::string& path, std::string_view text, std::string_view noun,
                const std::string& of) {
  struct stat original{};
  struct stat there{};
  const bool is_free = host_files().stat(path, there, false) != 0;
  if ((is_free || S_ISREG(there.st_mode)) && host_files().stat(of, original) == 0) {
    // The new file takes the mode of the one that it replaces.
    const auto mode = static_cast<mode_t>(original.st_mode & 0777);
    const held_file empty(host_files().open(path, O_WRONLY | O_CREAT, mode));
    if (empty) host_files().set_mode(empty.fd(), mode);
  }
  try {
    write_whole_file(path, text, noun);
  } catch (const failure&) {
    if (is_free) host_files().unlink(path);
    throw;
  }
}

// The text of an entry; empty if it has another type.
std::string text_in(const ordered_json& of, const char* key) {
  const auto text = of.is_object() ? of.value(key, ordered_json()) : ordered_json();
  return text.is_string() ? text.get<std::string>() : "";
}

// The end of a URL's path, at which its query begins.
std::size_t path_end(const std::string& url) {
  return has_scheme(url) ? std::min(url.find_first_of("?#"), url.size()) : url.size();
}

// The last component of the path, with the query, which may select a version of the object; without
// it for a local folder.
std::string file_of(const std::string& url, bool is_local) {
  const auto end = path_end(url);
  const auto slash = url.substr(0, end).rfind('/');
  const auto begin = slash == url.npos ? 0 : slash + 1;
  return is_local ? url.substr(begin, end - begin) : url.substr(begin);
}

// The folder of a URL; of a local path, an absolute file: URL.
std::string whole_folder_of(const std::string& url) {
  if (has_scheme(url)) return url.substr(0, url.substr(0, path_end(url)).rfind('/'));
  return "file://" + std::filesystem::absolute(url).lexically_normal().parent_path().string();
}

// The base of relative URLs in the index at `file`.
std::string base_of(const ordered_json& index, const std::string& file) {
  const std::string base = text_in(index, "base");
  return base.empty() ? std::filesystem::absolute(file).parent_path().string() : base;
}

// The folder that contains all shards of the list.
std::string common_folder(const ordered_json& list, const std::string& base_of_index) {
  std::string base;
  for (const auto& shard : list) {
    const std::string found = whole_folder_of(url_in_base(base_of_index, text_in(shard, "url")));
    if (!base.empty() && found != base) {
      throw failure(
          error(errc::usage, fmt::format("the shards are in several folders, {} and {}",
                                         printable(redacted(base)), printable(redacted(found)))));
    }
    base = found;
  }
  return base;
}

struct moved_shard {
  ordered_json entry;
  std::string url;     // new
  std::string before;  // the old URL
  std::size_t place;   // in the old list
};

// Throws if two shards with different URLs would get the same one.
void check_apart(const std::vector<moved_shard>& sorted) {
  const auto meet = std::ranges::adjacent_find(
      sorted, [](const auto& a, const auto& b) { return a.url == b.url && a.before != b.before; });
  if (meet == sorted.end()) return;
  throw failure(error(errc::usage, fmt::format("{} and {} would have one name",
                                               printable(redacted(meet->before)),
                                               printable(redacted(std::next(meet)->before))))
                    .at(printable(redacted(meet->url)))
                    .hint("rename one of them, and create the index again"));
}

// Gives the shards their new URLs and sorts by them. Returns the old place of each.
std::vector<std::size_t> move_shards(ordered_json& index, const std::string& file,
                                     const index_changes& a) {
  ordered_json list = std::move(index["shardlist"]);  // a new member moves the others
  const std::string base_before = base_of(index, file);
  if (a.rebase) {
    const std::string base = url_without_secrets(common_folder(list, base_before));
    if (a.rebasing) a.rebasing(redacted(base));
    index["base"] = base;
  }
  const bool bare = a.no_folder || a.folder.empty();
  const std::string plain = url_without_secrets(a.folder);
  const std::string folder = bare ? "" : plain + (plain.ends_with('/') ? "" : "/");
  std::vector<moved_shard> moved;
  for (auto& shard : list) {
    const std::string before = text_in(shard, "url");
    const std::string whole = url_in_base(base_before, before);
    const std::string url =
        folder + file_of(url_without_secrets(whole), !bare && !has_scheme(folder));
    shard["url"] = url;
    moved.push_back(
        {.entry = std::move(shard), .url = url, .before = before, .place = moved.size()});
  }
  std::ranges::sort(moved, {}, [](const moved_shard& m) { return std::tie(m.url, m.place); });
  check_apart(moved);
  ordered_json& sorted = index["shardlist"] = ordered_json::array();
  std::vector<std::size_t> places;
  for (moved_shard& one : moved) {
    sorted.push_back(std::move(one.entry));
    places.push_back(one.place);
  }
  return places;
}

// The index's existing sidecar, reordered like `list`, whose shards had these places. Throws
// `failure` if it is damaged or belongs to another index.
std::string moved_offsets(engine& eng, const std::string& file, const ordered_json& list,
                          const std::vector<std::size_t>& places) {
  const shard_index before = read_index(eng, file);
  shard_index after = before;  // included indices' shards follow its own
  for (std::size_t i = 0; i < places.size(); ++i) {
    after.shards.at(i) = before.shards.at(places[i]);
    after.shards[i].url = text_in(list[i], "url");
  }
  return offsets_text(after);
}

// The text of a local index, refused if parsing it would exceed the memory budget.
std::string bounded_local(const std::string& path, std::size_t most) {
  const auto refuse = [&](const error& why) {
    throw failure(error(why).at(path).hint("raise engine_options.memory_bytes (MILLRACE_MEMORY)"));
  };
  std::error_code none;
  if (const auto size = std::filesystem::file_size(path, none); !none && size > most) {
    refuse(error(errc::too_large,
                 fmt::format("an index of {} bytes does not fit into the budget", size)));
  }
  std::string text = read_local(path);
  const auto parsed = json_tree::read(text, {.most = most});
  if (!parsed && parsed.error().kind() == errc::too_large) refuse(parsed.error());
  return text;
}

// Throws `failure` (bad_index) if `text` is not an index.
ordered_json parsed_index(const std::string& text, const std::string& file) {
  if (const auto why = why_not_parsed(text)) {
    const bool is_object = text.find('{') == text.find_first_not_of(" \t\r\n");
    error bad(errc::bad_index, "not an index: " + (is_object ? *why : "it is not a JSON object"));
    bad.hint(is_object ? flatten_hint : index_again_hint);
    throw failure(bad.at(file));
  }
  auto index = ordered_json::parse(text, nullptr, false);
  const bool is_list =
      index.is_object() && index.contains("shardlist") && index["shardlist"].is_array() &&
      std::ranges::none_of(index["shardlist"],
                           [](const ordered_json& shard) { return text_in(shard, "url").empty(); });
  if (is_list) return index;
  throw failure(error(errc::bad_index, "not an index: every shard of its list needs a 'url'")
                    .at(file)
                    .hint(index_again_hint));
}

}  // namespace

index_update update_index(engine& eng, const std::string& path, const index_changes& changes) {
  if (!changes.folder.empty() && changes.no_folder) {
    throw failure(
        error(errc::usage, "index_changes.folder and index_changes.no_folder exclude each other")
            .at(path)
            .hint("give one of them"));
  }
  const held_file alone = hold_index(path);
  const std::string text = bounded_local(path, room_for_index(eng));
  auto index = parsed_index(text, path);
  const std::string copy = path + ".bak";
  const std::string sidecar = sidecar_there(path);
  const std::string sidecar_copy = sidecar_of(path) + ".bak";
  check_copy(copy, index_document, std::array{path, sidecar});
  check_copy(sidecar_copy, index_sidecar, std::array{path, sidecar});
  remove_link(copy);
  remove_link(sidecar_copy);
  if (!changes.name.empty()) index["name"] = changes.name;
  if (changes.keep) index["keep"] = *changes.keep;
  if (!changes.info.empty()) index["info"] = changes.info;
  if (!changes.base.empty()) index["base"] = url_without_secrets(changes.base);
  std::optional<std::string> offsets;
  if (!changes.folder.empty() || changes.no_folder || changes.rebase) {
    const auto places = move_shards(index, path, changes);
    if (is_there(sidecar)) offsets = moved_offsets(eng, path, index["shardlist"], places);
  }
  if (!index.contains("name")) {
    index["name"] = std::filesystem::path(path).stem().string();
  }
  write_copy(copy, text, "copy of the index", path);
  if (offsets) {
    write_copy(sidecar_copy, read_local(sidecar), "copy of the offsets", sidecar);
    written_file index_file(path, "index");
    written_file sidecar_file(sidecar_place(path), "offsets");
    index_file.append(python_json(index));
    sidecar_file.append(*offsets);
    commit_index(index_file, path, &sidecar_file);
  } else {
    write_whole_file(path, python_json(index), "index");
  }
  // Partial files of killed updates, whichever files those were to write.
  remove_partial_files(std::array{sidecar_place(path), copy, sidecar_copy});
  return {.shards = index["shardlist"].size(), .copy = copy};
}

}  // namespace millrace
