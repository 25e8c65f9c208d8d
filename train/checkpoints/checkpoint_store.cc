#include "train/checkpoints/checkpoint_store.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <ranges>
#include <set>
#include <utility>

#include "engine/base/json_tree.h"
#include "engine/base/parsed_number.h"
#include "engine/base/words.h"
#include "engine/host/log.h"
#include "pipeline/run/engine.h"
#include "pipeline/stages/raw_bytes.h"
#include "train/checkpoints/checkpoint_names.h"
#include "train/files.h"

namespace millrace {

// What a prefix holds below one name.
struct checkpoint_store::listed {
  std::string name;  // below the prefix
  stored_name parts;
  std::set<std::string> files;
  bool is_whole() const { return files.contains(meta_name); }
  bool is_aside() const { return files.contains(std::string(aside_name)); }
  bool counts() const { return is_whole() && !is_aside(); }
  static constexpr std::string_view aside_name = "set-aside";
  static constexpr std::string_view claim_name = "claim";
};

namespace {

constexpr std::string_view aside_text =
    "Runs pass over this checkpoint. Delete this object to let it count again.\n";

// The content of an object; nullopt: there is none. Throws `failure`: too_large beyond `most`
// bytes.
std::optional<std::string> object_at(engine& eng, const std::string& url,
                                     std::size_t most = most_of_a_list) {
  try {
    std::string content;
    auto data = eng.run(raw_bytes({url}));
    for (const bytes& piece : data) {
      content += piece.text();
      if (content.size() > most) {
        throw failure(error(errc::too_large, fmt::format("more than {} bytes, which no list of a "
                                                         "checkpoint has",
                                                         most))
                          .at(url)
                          .hint("give the URL of a checkpoint of millrace-train"));
      }
    }
    return content;
  } catch (const failure& f) {
    if (f.kind() == errc::not_found) return std::nullopt;
    throw;
  }
}

// An engine that reads objects as they are in the store, and nothing else.
engine_options for_objects(engine_options reach) {
  reach.cpu_threads = 1;
  reach.io_threads = 1;
  reach.allocator = nullptr;
  reach.register_buffers = false;
  reach.source.cache = {};
  reach.source.rewrites = {};
  return reach;
}

// The files of the checkpoints below a prefix, by name. What else lies there is not listed.
std::map<std::string, std::set<std::string>> checkpoints_below(const stored_objects& objects) {
  std::map<std::string, std::set<std::string>> found;
  for (const auto& [path, bytes] : objects.list(std::string(step_prefix)).value()) {
    const auto slash = path.find('/');
    if (slash == std::string::npos) continue;
    const std::string name = path.substr(0, slash);
    if (parse_stored_name(name)) found[name].insert(path.substr(slash + 1));
  }
  return found;
}

// The next checkpoint tries again.
template <class F>
void remove_or_tell(F removal) {
  try {
    removal();
  } catch (const failure& f) {
    log_notice(fmt::format("old checkpoints could not be removed: {}", f.what()));
  }
}

error written_by_another(const std::string& url, bool is_of_this_run) {
  return error(errc::usage, is_of_this_run
                                ? "another process of this run writes its checkpoints here"
                                : "another run writes its checkpoints here")
      .at(url)
      .hint("end one of them, or give it another --checkpoint-dir");
}

error in_the_way_error(const std::string& where, std::size_t others, const std::string& resumed) {
  return error(errc::usage,
               resumed.empty()
                   ? fmt::format("the store holds {} of an earlier run there",
                                 counted(others, "checkpoint"))
                   : fmt::format("the store holds checkpoints other than those before {}", resumed))
      .at(where)
      .hint(fmt::format("{}--overwrite sets them aside, or use another --checkpoint-dir",
                        resumed.empty() ? "--resume auto resumes the newest, " : ""));
}

}  // namespace

std::optional<stored_name> parse_stored_name(std::string_view name) {
  const std::string first = step_name(0);
  const std::string_view step = name.substr(0, first.size());
  if (!is_step_name(step)) return std::nullopt;
  stored_name out{.step = std::string(step)};
  std::string_view rest = name.substr(step.size());
  if (rest.empty()) return out;
  if (!rest.starts_with('-')) return std::nullopt;
  rest.remove_prefix(1);
  out.generation = parsed_number<decltype(out.generation)>(rest).value_or(0);
  if (out.generation < 2 || rest.starts_with('0')) return std::nullopt;
  return out;
}

checkpoint_files read_stored_checkpoint(const std::string& url, const engine_options& reach) {
  std::string path = url;
  while (path.ends_with('/')) path.pop_back();
  engine eng(for_objects(reach));
  if (!object_at(eng, path + "/" + meta_name)) {
    throw failure(error(errc::not_found, "no such checkpoint")
                      .at(path)
                      .hint("set --resume to auto, or to a checkpoint's URL, "
                            "s3://BUCKET/PREFIX/step-NNNNNNNNNN"));
  }
  const auto read = [&](const std::string& name, std::size_t most) -> std::optional<std::string> {
    try {
      return object_at(eng, path + "/" + name, most);
    } catch (const failure& f) {
      // What is not there is forbidden where objects may not be listed.
      if (name == validation_name && f.kind() == errc::not_allowed) return std::nullopt;
      throw;
    }
  };
  return read_checkpoint_by(read, path);
}

checkpoint_store::checkpoint_store(const std::string& prefix, const engine_options& reach)
    : objects_(prefix, reach.source), reach_(for_objects(reach)) {}

// Oldest first.
std::vector<checkpoint_store::listed> checkpoint_store::list(const stored_objects& objects) {
  std::vector<listed> found;
  for (auto& [name, files] : checkpoints_below(objects)) {
    found.push_back({.name = name, .parts = parse_stored_name(name).value(), .files = files});
  }
  std::ranges::sort(found, {}, &listed::parts);
  return found;
}

std::optional<chosen_checkpoint> checkpoint_store::newest(const checkpoint_check& check,
                                                          const choice_note& note) {
  std::vector<std::string> all;
  for (const listed& one : list(objects_)) {
    if (one.counts()) all.push_back(objects_.url_of(one.name));
  }
  return newest_sound(
      all, [this](const std::string& url) { return read_stored_checkpoint(url, reach_); }, check,
      note);
}

std::vector<checkpoint_store::listed> checkpoint_store::in_the_way(
    const std::string& resumed) const {
  auto found = list(objects_);
  const auto from = parse_stored_name(objects_.name_of(resumed));
  std::erase_if(found,
                [&](const listed& one) { return !one.counts() || (from && one.parts <= *from); });
  return found;
}

void checkpoint_store::check(const std::string& resumed, bool may_set_aside) {
  const stored_objects::session together(objects_);
  if (objects_.get(meta_name, most_of_a_list).value()) {
    throw failure(error(errc::usage, "this is a checkpoint, not a prefix of checkpoints")
                      .at(objects_.prefix())
                      .hint("give it to --resume, and another prefix as --checkpoint-dir"));
  }
  known_.clear();
  aside_.clear();
  std::vector<std::string> halves;
  for (const listed& one : list(objects_)) {
    if (one.is_whole()) known_.push_back(one.name);
    if (one.is_aside()) aside_.push_back(one.name);
    if (!one.is_whole() && one.files.contains(std::string(listed::claim_name))) {
      halves.push_back(one.name);
    }
  }
  if (!halves.empty()) {
    log_notice(fmt::format(
        "{}: {} of uploads that did not end: delete them, unless another run is writing them",
        objects_.prefix(), fmt::join(halves, ", ")));
  }
  const std::string trial = fmt::format(".trial-{}", getpid());
  objects_.put(trial, "").value();
  if (const auto removed = objects_.remove(trial); !removed) {
    log_notice(fmt::format("old checkpoints will not be removed: {}", removed.error().message()));
  }
  const auto others = in_the_way(resumed);
  if (others.empty() || may_set_aside) return;
  throw failure(in_the_way_error(objects_.url_of(others.back().name), others.size(), resumed));
}

// The newest first: those that a kill leaves are the beginning of the earlier run.
std::string checkpoint_store::set_aside_newer(const std::string& resumed) {
  const stored_objects::session together(objects_);
  std::vector<std::string> names;
  const auto others = in_the_way(resumed);
  for (const listed& one : others | std::views::reverse) {
    objects_.put(fmt::format("{}/{}", one.name, listed::aside_name), aside_text).value();
    names.push_back(one.name);
  }
  if (names.empty()) return {};
  std::ranges::reverse(names);
  return fmt::format(
      "checkpoints that were in the way are set aside in {}: {} (an object "
      "'{}' below each says so)",
      objects_.prefix(), fmt::join(names, ", "), listed::aside_name);
}

bool checkpoint_store::holds(const std::string& path, std::int64_t step) {
  const std::string name = objects_.name_of(path);
  const auto parts = parse_stored_name(name);
  const bool is_aside = std::ranges::find(aside_, name) != aside_.end();
  return parts && parts->step == step_name(step) && !is_aside;
}

std::string checkpoint_store::path_of(std::int64_t step) const {
  return objects_.url_of(step_name(step));
}

// The run that wrote a whole checkpoint; empty: unknown.
std::string checkpoint_store::run_of(const listed& one) const {
  const auto text = objects_.get(fmt::format("{}/{}", one.name, meta_name), most_of_a_list).value();
  const auto meta = json_tree::parse(text.value_or(""));
  return meta ? std::string(meta->text_of("run")) : "";
}

// Throws if another process has written a checkpoint there since check().
void checkpoint_store::check_alone(const std::vector<listed>& all, const std::string& run) const {
  for (const listed& one : all) {
    if (!one.is_whole() || std::ranges::find(known_, one.name) != known_.end()) continue;
    throw failure(written_by_another(objects_.url_of(one.name), run_of(one) == run));
  }
}

// Deletes the files of a whole checkpoint of this run, train.json first: from then on the rest does
// not count. The claim is last, so that its name is not taken by another meanwhile.
void checkpoint_store::remove(const listed& one) const {
  std::string meta;
  if (one.is_whole()) {
    const std::string name = fmt::format("{}/{}", one.name, meta_name);
    meta = objects_.get(name, most_of_a_list).value().value_or("");
    objects_.remove(name).value();
  }
  for (const std::string& file :
       own_files(std::vector<std::string>(one.files.begin(), one.files.end()), meta)) {
    objects_.remove(fmt::format("{}/{}", one.name, file)).value();
  }
  if (one.files.contains(std::string(listed::claim_name))) {
    objects_.remove(fmt::format("{}/{}", one.name, listed::claim_name)).value();
  }
}

// Takes the first free name of a step for this process alone, as far as the store has conditions.
std::string checkpoint_store::claim(stored_name name, const std::string& run) const {
  constexpr int most_tries = 100;
  const std::string mine = fmt::format("{} {}\n", run, unique_name());
  for (int tries = 1;; ++tries, ++name.generation) {
    const std::string at =
        name.generation == 1 ? name.step : fmt::format("{}-{}", name.step, name.generation);
    const auto claimed = objects_.put(fmt::format("{}/{}", at, listed::claim_name), mine,
                                      stored_objects::existing::refused);
    if (claimed) return at;
    const bool is_taken = claimed.error().kind() == errc::changed;
    if (!is_taken || tries == most_tries) throw failure(claimed.error());
  }
}

std::string checkpoint_store::write(std::int64_t step, const checkpoint_files& files) {
  const auto meta = json_tree::parse(file_in(files, meta_name, path_of(step)));
  const std::string run = meta ? std::string(meta->text_of("run")) : "";
  const stored_objects::session together(objects_);
  const auto all = list(objects_);
  check_alone(all, run);
  stored_name name{.step = step_name(step)};
  for (const listed& one : all) {
    if (one.parts.step == name.step) {
      name.generation = std::max(name.generation, one.parts.generation + 1);
    }
  }
  const std::string at = claim(name, run);
  for (const auto& [file, content] : files) {
    if (file != meta_name) objects_.put(fmt::format("{}/{}", at, file), content).value();
  }
  const auto committed = objects_.put(fmt::format("{}/{}", at, meta_name), files.at(meta_name),
                                      stored_objects::existing::refused);
  if (!committed && committed.error().kind() == errc::changed) {
    throw failure(written_by_another(objects_.url_of(at), false));
  }
  committed.value();
  known_.push_back(at);
  remove_or_tell([&] {
    for (const listed& one : all) {
      const bool is_replaced = one.counts() && one.parts.step == name.step;
      if (is_replaced && run_of(one) == run) remove(one);
    }
  });
  return objects_.url_of(at);
}

void checkpoint_store::remove_old(const std::string& run, std::size_t keep,
                                  const std::string& resumed) {
  remove_or_tell([&] {
    const stored_objects::session together(objects_);
    auto all = list(objects_);
    std::erase_if(all, [](const listed& one) { return !one.counts(); });
    for (std::size_t i = 0; i + keep < all.size(); ++i) {
      if (all[i].name != objects_.name_of(resumed) && run_of(all[i]) == run) remove(all[i]);
    }
  });
}

void checkpoint_store::add(const std::string& path, const std::string& name,
                           const std::string& text) {
  objects_.put(fmt::format("{}/{}", objects_.name_of(path), name), text).value();
}

std::optional<std::string> checkpoint_store::newest_below(const std::string& prefix,
                                                          const engine_options& reach) {
  const stored_objects objects(prefix, reach.source);
  const auto all = list(objects);
  const auto newest = std::ranges::find_if(all | std::views::reverse, &listed::counts);
  if (newest == all.rend()) return std::nullopt;
  return objects.url_of(newest->name);
}

}  // namespace millrace
