#include "pipeline/tools/job_record.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "engine/error.h"
#include "engine/file_system.h"
#include "engine/folders.h"
#include "engine/printable.h"
#include "engine/words.h"
#include "engine/written_file.h"
#include "io/folder_listing.h"
#include "pipeline/tar_writer.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

// Of a file; nullopt where none is there.
std::optional<std::string> text_there(const std::string& path) {
  auto text = read_whole_file(path);
  if (text) return std::move(*text);
  if (text.error().kind() != errc::not_found) throw failure(text.error());
  return std::nullopt;
}

std::string_view first_line_of(std::string_view text) {
  return text.substr(0, text.find('\n'));
}

// A hidden file beside the record: of a part whose run with `overwrite` has not come to its end, so
// that shards of an older job may stand under its names. It holds the first line of the record.
std::string mark_of(const std::string& record, int part, int parts) {
  return fmt::format("{}.{}-of-{}", record, part, parts);
}

// The marks of this job, by their paths.
std::vector<std::string> marks_there(const std::string& record, const std::string& about) {
  const fs::path path(record);
  const std::string folder = path.has_parent_path() ? path.parent_path().string() : ".";
  std::vector<std::string> names;
  const int code = host_files().list(folder, names);
  if (code == -ENOENT) return {};
  if (code != 0) {
    throw failure(error(kind_of(-code), "cannot read the folder of the shards")
                      .at(folder)
                      .cause(-code)
                      .hint(hint_on_path(-code)));
  }
  std::vector<std::string> out;
  for (const std::string& name : names) {
    const std::string mark = (path.parent_path() / name).string();
    const bool is_mark = mark.starts_with(record + ".") && name.find("-of-") != name.npos;
    if (is_mark && text_there(mark) == about) out.push_back(mark);
  }
  return out;
}

}  // namespace

std::string record_path(const shard_names& names) {
  const fs::path first(names(0));
  return (first.parent_path() / ("." + first.stem().string() + ".pack.json")).string();
}

void check_no_shard_after(const shard_names& names, std::size_t count) {
  const auto is_older = [&](std::size_t i) {
    return (names.limit() == 0 || i < names.limit()) && is_there(names(i));
  };
  if (!is_older(count)) return;
  std::size_t end = count + 1;
  while (is_older(end)) ++end;
  throw failure(error(errc::usage, fmt::format("{} of an older run would follow the {} of this one",
                                               counted(end - count, "shard"), count))
                    .at(names(count))
                    .hint(fmt::format("remove {}, or choose another name",
                                      end - count == 1 ? "it"
                                                       : fmt::format("them (up to {})",
                                                                     printable(names(end - 1))))));
}

shard_job begin_job(const shard_names& names, const job_record& job) {
  const std::string about =
      fmt::format(R"({{"fingerprint":"{:016x}","millrace_pack":1,"samples":{},"shards":{}}})",
                  job.fingerprint, job.samples, job.shards);
  const std::string path = record_path(names);
  const bool is_same = first_line_of(text_there(path).value_or("")) == about;
  // Marks of a part: its own, and those of parts that the job was divided into otherwise.
  const std::string own = mark_of(path, job.part, job.parts);
  auto marks = marks_there(path, about);
  const std::string division = fmt::format("-of-{}", job.parts);
  std::erase_if(marks, [&](const auto& m) { return m.ends_with(division) && m != own; });
  const bool is_divided_otherwise =
      std::ranges::any_of(marks, [&](const auto& m) { return m != own; });
  bool has_any = false;
  for (std::size_t i = 0; i < job.shards; ++i) {
    const std::string name = names(i);
    if (!is_there(name)) continue;
    has_any = true;
    if (!job.overwrite && (!is_same || !marks.empty())) {
      throw failure(error(errc::usage, is_same
                                           ? "a run that was to replace shards was stopped, and "
                                             "which of them are new is not known"
                                           : "a shard of that name is there, of another run")
                        .at(name)
                        .hint("choose another name, or set pack_options.overwrite"));
    }
    check_shard_output(name, true, job.inputs);
  }
  check_no_shard_after(names, job.shards);
  if (job.overwrite && has_any) {
    // What is there of another job, or of such a run of all parts, may have the name of any shard.
    const bool is_of_all = !is_same || is_divided_otherwise;
    const auto used = std::min<std::uint64_t>(job.shards, static_cast<std::uint64_t>(job.parts));
    for (int part = 1; part <= static_cast<int>(used); ++part) {
      if (is_of_all || part == job.part) write_whole_file(mark_of(path, part, job.parts), about);
    }
    marks.push_back(own);
  }
  if (!is_same) write_whole_file(path, about + "\n", "record of the shards");
  return {path, about, is_same && !job.overwrite, std::move(marks)};
}

void shard_job::end() const {
  for (const std::string& mark : marks_) host_files().unlink(mark);
}

void shard_job::check_is_the_last() const {
  const std::string there = text_there(record_).value_or("");
  if (first_line_of(there) == about_) return;
  throw failure(error(errc::usage, "another run has begun to write shards of these names")
                    .at(record_)
                    .hint("choose another name for one of the two"));
}

std::string beside_shards(const shard_names& names, const std::string& name) {
  const fs::path first(names(0));
  std::string stem = first.stem().string();
  while (!stem.empty() && stem.back() >= '0' && stem.back() <= '9') stem.pop_back();
  const bool needs_dash =
      !stem.empty() && std::isalnum(static_cast<unsigned char>(stem.back())) != 0;
  if (needs_dash) stem += '-';
  return (first.parent_path() / (stem + name)).string();
}

void write_beside(const std::string& path, std::string_view text, bool overwrite) {
  const auto there = text_there(path);
  if (there == text) return;
  if (there && !overwrite) {
    throw failure(error(errc::usage, "another file of that name is there")
                      .at(path)
                      .hint("choose another name for the shards, or set pack_options.overwrite"));
  }
  write_whole_file(path, text);
}

}  // namespace millrace
