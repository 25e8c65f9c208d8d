#include "train/job/outputs.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <span>
#include <string_view>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/json_tree.h"
#include "engine/files/folders.h"
#include "engine/files/written_file.h"
#include "io/stores/stored_objects.h"
#include "train/checkpoints/checkpoint_files.h"
#include "train/checkpoints/checkpoint_names.h"
#include "train/files.h"
#include "train/loop/report.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

struct output {
  const char* option;
  std::string path;  // empty: not given
};

// A file of lines that a resumed run adds to.
struct lines_file {
  const char* option;
  const char* noun;
  const char* name;
  bool (*matches)(std::string_view);  // whether a file with this first line is one
};

bool has_all(const json_tree& line, std::initializer_list<std::string_view> keys) {
  return std::ranges::all_of(keys, [&](std::string_view key) { return line.find(key) != nullptr; });
}

// Whether a line cut short by a kill may be one with this start.
bool is_cut(std::string_view line, std::string_view start) {
  return !line.ends_with('\n') && line.substr(0, start.size()) == start.substr(0, line.size());
}

bool is_metrics(std::string_view line) {
  const auto parsed = json_tree::parse(line);
  if (!parsed) return is_cut(line, R"({"arguments":{"--)");
  return has_all(*parsed, {"arguments", "begin", "rank", "world_size"}) ||
         has_all(*parsed, {"step", "epoch", "batch", "samples", "loss", "accuracy", "lr", "seconds",
                           "waiting"}) ||
         has_all(*parsed, {"end_of_epoch", "step", "decoded", "skipped"}) ||
         has_all(*parsed, {"validation", "epoch", "step", "loss", "top1", "top5", "images"}) ||
         has_all(*parsed, {"resumed", "step"}) ||
         has_all(*parsed, {"end", "step", "epochs", "samples", "delivered", "bytes_read"});
}

bool is_skipped_list(std::string_view line) {
  const auto parsed = json_tree::parse(line);
  if (parsed && !has_all(*parsed, {"kind", "url", "key", "message"})) return false;
  for (int kind = 0; kind <= static_cast<int>(errc::internal); ++kind) {
    const std::string_view name = kind_name(static_cast<errc>(kind));
    const bool is_it = parsed ? parsed->text_of("kind") == name
                              : is_cut(line, fmt::format(R"({{"kind":"{}","url":")", name));
    if (is_it) return true;
  }
  return false;
}

// A regular file that is not empty.
bool has_lines(const std::string& path) {
  struct stat about{};
  return stat(path.c_str(), &about) == 0 && S_ISREG(about.st_mode) && about.st_size > 0;
}

// The first line, including its newline if it has one.
std::string first_line(const std::string& path) {
  constexpr std::streamsize most = 1 << 20;
  std::string line(most, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(line.data(), most);
  line.resize(static_cast<std::size_t>(file.gcount()));
  if (const auto end = line.find('\n'); end != line.npos) line.resize(end + 1);
  return line;
}

void check_lines(const train_options& o, const std::string& path, const lines_file& as) {
  if (path.empty()) return;
  check_output(path, {.name = as.name, .matches = [](std::string_view) { return true; }}, {});
  if (has_lines(path) && !as.matches(first_line(path))) {
    throw failure(error(errc::usage, fmt::format("the existing file is not {}", as.name))
                      .at(path)
                      .hint("choose another name for the output, or remove that file first"));
  }
  if (has_lines(path) && o.resume.empty() && !o.overwrite) {
    throw failure(error(errc::usage, fmt::format("{} is the file of another run", as.option))
                      .at(path)
                      .hint("use another one, or --overwrite (or --resume, to append)"));
  }
  // An existing file must be writable; otherwise a file must be creatable.
  const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : ".";
  const std::string target = is_there(path) ? path : folder.string();
  if (access(target.c_str(), W_OK) != 0) throw failure(cannot_write(as.noun, path, errno));
}

// Profiles by PyTorch's profiler; an earlier one is replaced.
void check_profile(const std::string& path) {
  if (path.empty()) return;
  check_output(path,
               {.name = "a profile",
                .matches =
                    [](std::string_view start) {
                      return start.substr(0, 64).find("\"schemaVersion\"") != start.npos;
                    }},
               {});
  const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : ".";
  if (access(folder.c_str(), W_OK) != 0) throw failure(cannot_write("the profile", path, errno));
}

// Folders of files, whose options name them.
std::array<std::pair<std::string, const char*>, 2> folders_of(const train_options& o) {
  return {{{o.record_batches, "batches"}, {o.cache_folder, "decoded images"}}};
}

// Whether a folder exists and is writable, or can be created.
void check_folder(const std::string& folder, const char* what) {
  if (folder.empty()) return;
  std::error_code why;
  fs::path there = fs::absolute(folder, why);
  while (!fs::exists(there, why) && !why && there.has_relative_path()) there = there.parent_path();
  int code = why.value();
  if (code == 0 && !fs::is_directory(there)) code = ENOTDIR;
  if (code == 0 && access(there.c_str(), W_OK) != 0) code = errno;
  if (code != 0) throw failure(cannot_write(what, folder, code));
}

// The path without links or a trailing slash, even if it does not exist yet; empty if it cannot be
// examined.
fs::path plain(const std::string& path) {
  std::error_code why;
  fs::path at = path;
  // Dangling links, which weakly_canonical() keeps; as many as the kernel follows.
  for (int links = 0; links < 40 && fs::is_symlink(at, why) && !fs::exists(at, why); ++links) {
    at = at.parent_path() / fs::read_symlink(at, why);
  }
  const fs::path whole = fs::weakly_canonical(fs::absolute(at, why).lexically_normal(), why);
  if (why) return {};
  return whole.has_filename() ? whole : whole.parent_path();
}

// Whether one output would overwrite the other. Devices and pipes may have several writers.
bool are_one(const std::string& a, const std::string& b) {
  struct stat about{};
  const bool is_file_or_folder =
      stat(a.c_str(), &about) != 0 || S_ISREG(about.st_mode) || S_ISDIR(about.st_mode);
  if (!is_file_or_folder) return false;
  if (is_same(a, b) == true) return true;
  const fs::path one = plain(a);
  return !one.empty() && one == plain(b);
}

bool holds_checkpoints(const fs::path& folder) {
  const auto found = folders_in(folder.string(), is_step_name);
  return found && std::ranges::any_of(*found, [](const std::string& path) {
           std::error_code why;
           return fs::exists(fs::path(path) / meta_name, why);
         });
}

// The part of a checkpoint folder (this run's or another's) that contains `path` and that runs
// write themselves: a checkpoint, whole or not, a path with a checkpoint's name, or a lock. Empty:
// none.
fs::path place_of_run(const fs::path& path, const fs::path& checkpoints) {
  for (fs::path at = path; at.has_relative_path(); at = at.parent_path()) {
    if (!is_name_of_run(at.filename().string())) continue;
    std::error_code why;
    const fs::path folder = at.parent_path();
    if (fs::exists(at / meta_name, why) || (!checkpoints.empty() && folder == checkpoints) ||
        holds_checkpoints(folder))
      return at;
  }
  return {};
}

// The folder of --checkpoint-dir; empty: none, or a place in a store.
std::string checkpoint_folder(const train_options& o) {
  return names_server(o.checkpoint_dir) ? "" : o.checkpoint_dir;
}

// Nothing else is written where checkpoints are.
void check_beside_checkpoints(const train_options& o, std::span<const output> all) {
  const std::string given = checkpoint_folder(o);
  const fs::path folder = given.empty() ? fs::path() : plain(given);
  for (const output& one : all) {
    if (one.path.empty()) continue;
    const fs::path place = place_of_run(plain(one.path), folder);
    if (place.empty()) continue;
    throw failure(error(errc::usage, fmt::format("{} names a part of {}", one.option,
                                                 place.filename() == lock_name ? "the lock of a run"
                                                                               : "a checkpoint"))
                      .at(one.path)
                      .hint("give it a path outside of checkpoints"));
  }
}

// A folder cannot be created in place of a dangling link.
void check_link(const std::string& folder, const char* option) {
  std::error_code why;
  if (!fs::is_symlink(folder, why) || fs::exists(folder, why) || why) return;
  throw failure(error(errc::not_found, fmt::format("{} is a link to nothing", option))
                    .at(folder)
                    .hint("create the folder that it leads to, or remove the link"));
}

void check_distinct(const train_options& o, const std::string& metrics) {
  const std::array all{output{"--metrics", metrics},
                       output{"--skipped", o.bad_samples.report},
                       output{"--profile", o.profile},
                       output{"--record-batches", o.record_batches},
                       output{"--checkpoint-dir", checkpoint_folder(o)},
                       output{"--cache-decoded-dir", o.cache_folder}};
  for (const output& one : all) check_is_path(one.path, fmt::format("output of {}", one.option));
  check_beside_checkpoints(o, all);
  for (auto a = all.begin(); a != all.end(); ++a) {
    for (auto b = a + 1; b != all.end(); ++b) {
      if (a->path.empty() || b->path.empty() || !are_one(a->path, b->path)) continue;
      throw failure(error(errc::usage, fmt::format("{} and {} are the same", a->option, b->option))
                        .at(a->path)
                        .hint("give each a path of its own"));
    }
  }
}

}  // namespace

void check_outputs(const train_options& o, const job_place& place) {
  const std::string metrics =
      o.metrics.empty() ? std::string() : reporter::metrics_of(o.metrics, place.rank);
  check_distinct(o, metrics);
  check_link(o.record_batches, "--record-batches");
  check_link(o.cache_folder, "--cache-decoded-dir");
  if (place.rank == 0) check_link(checkpoint_folder(o), "--checkpoint-dir");
  check_lines(o, metrics, {"--metrics", "metrics", "a metrics file", is_metrics});
  check_lines(
      o, o.bad_samples.report,
      {"--skipped", "the list of skipped samples", "a list of skipped samples", is_skipped_list});
  if (place.rank == 0) check_profile(o.profile);
  for (const auto& [folder, what] : folders_of(o)) check_folder(folder, what);
}

void make_output_folders(const train_options& o) {
  for (const auto& [folder, what] : folders_of(o)) {
    const int code = folder.empty() ? 0 : make_folders(folder);
    if (code != 0) throw failure(cannot_write(what, folder, -code));
  }
}

void empty_replaced_list(const train_options& o) {
  const std::string& path = o.bad_samples.report;
  if (!o.overwrite || !o.resume.empty() || path.empty() || !has_lines(path)) return;
  if (truncate(path.c_str(), 0) == 0) return;
  throw failure(cannot_write("the list of skipped samples", path, errno));
}

}  // namespace millrace
