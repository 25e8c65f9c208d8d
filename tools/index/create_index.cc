#include "tools/index/create_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "engine/base/printable.h"
#include "engine/files/written_file.h"
#include "io/names/folder_listing.h"
#include "io/names/url.h"
#include "io/names/url_scheme.h"
#include "pipeline/formats/scan.h"
#include "pipeline/run/engine.h"
#include "pipeline/shards/shard_index.h"
#include "pipeline/wids/sidecar.h"
#include "tools/index/index_files.h"
#include "tools/jobs/job_reporter.h"
#include "tools/jobs/take_until_stopped.h"

namespace millrace {
namespace {

// The shard's URL as the index names it: relative to the index's folder, since readers resolve it
// from there, and without credentials, since readers have their own.
std::string url_in_index(const std::string& path, const index_options& o, const std::string& url) {
  namespace fs = std::filesystem;
  if (o.urls_as_given) return url;
  if (has_scheme(url) || url.starts_with('/')) return url_without_secrets(url);
  const auto folder = fs::path(path).parent_path();
  if (o.base || folder.empty()) return url;
  const auto from = fs::absolute(folder).lexically_normal();
  return fs::absolute(url).lexically_normal().lexically_relative(from).string();
}

// One entry of the shard list, formatted like Python's json.dump(indent=2). As text, because the
// destructors of JSON values need memory, and end the process where there is none.
std::string entry_of(const shard_facts& f, const std::string& url, bool md5) {
  std::string entry = fmt::format("    {{\n      \"url\": {}", quoted_json(url));
  if (md5) entry += fmt::format(",\n      \"md5sum\": {}", quoted_json(f.md5));
  entry += fmt::format(",\n      \"nsamples\": {}", f.samples.size());
  if (md5) entry += fmt::format(",\n      \"filesize\": {}", f.bytes);
  return entry + "\n    }";
}

// The texts before and after the entries.
constexpr std::string_view list_begin =
    "{\n  \"__kind__\": \"wids-shard-index-v1\",\n  \"wids_version\": 1,\n  \"shardlist\": [";
std::string after_list(const index_options& o) {
  std::string out = "\n  ]";
  const auto add = [&](std::string_view name, const std::string& text) {
    out += fmt::format(",\n  \"{}\": {}", name, quoted_json(text));
  };
  if (!o.name.empty()) add("name", o.name);
  if (o.base) add("base", url_without_secrets(*o.base));
  if (o.info) add("info", *o.info);
  return out + "\n}";
}

// JSON is UTF-8: a name in another encoding would become another file's name.
void check_is_text(const std::string& url) {
  if (is_utf8(url)) return;
  throw failure(error(errc::usage, "an index cannot name a shard whose name is not UTF-8")
                    .at(printable(url))
                    .hint("rename the file"));
}

// A command may contain passwords, and would run on the machines of the index's readers.
void check_is_no_command(const std::string& url) {
  const auto where = parse_url(url);
  if (!where || where->scheme != "pipe") return;
  throw failure(
      error(errc::usage, "an index does not list commands, which may hold secrets")
          .at(url)
          .hint("list the shards' own URLs; index_options.urls_as_given writes commands as they "
                "are"));
}

// Throws `failure` for the first problem of a shard.
void check_has_no_problem(const shard_facts& f) {
  if (f.problems.empty()) return;
  error why = f.problems.front();
  const bool is_read = exit_code(why.kind()) != exit_code(errc::io_failed);
  if (is_read && why.what_to_do().empty()) {
    why.hint("`millrace verify` lists all that is wrong with the shards");
  }
  throw failure(why);
}

struct indexed_shard {
  std::string entry;
  shard_index::shard offsets;
};

// The contents of the shards, in order of their URLs; nullopt if it was stopped. Sets
// `has_left_out` if a URL had secrets.
std::optional<std::vector<indexed_shard>> scanned(engine& eng, const std::vector<std::string>& urls,
                                                  const std::string& path, const index_options& o,
                                                  bool& has_left_out) {
  auto data = eng.run(scan(urls, {.md5 = o.md5, .keys = false}));
  std::vector<indexed_shard> shards;
  job_reporter progress(o.progress, [&] { return data.stats().sources.bytes; });
  const bool whole = take_until_stopped(data, o.stop, [&](const shard_facts& f) {
    check_has_no_problem(f);
    if (o.read) o.read(f.url);
    const std::string url = url_in_index(path, o, f.url);
    has_left_out = has_left_out || (has_scheme(f.url) && url != f.url);
    indexed_shard& shard = shards.emplace_back();
    shard.entry = entry_of(f, url, o.md5);
    shard.offsets.url = url;
    shard.offsets.samples = std::ssize(f.samples);
    shard.offsets.bytes = static_cast<std::int64_t>(f.bytes);
    shard.offsets.md5 = f.md5;
    if (o.offsets) list_places(f, shard.offsets);
    progress.add_shard();
  });
  if (!whole) return std::nullopt;
  std::ranges::sort(shards, {},
                    [](const indexed_shard& s) -> const std::string& { return s.offsets.url; });
  return shards;
}

// Throws `failure` (usage) unless the files of the index may be written.
void check_outputs(const std::vector<std::string>& urls, const std::string& path,
                   const index_options& o) {
  auto inputs = local_paths(urls);
  inputs.insert(inputs.end(), o.inputs.begin(), o.inputs.end());
  check_output(path, index_document, inputs);
  for (const auto& sidecar : {sidecar_place(path), sidecar_of(path)}) {
    check_output(sidecar, index_sidecar, inputs);
  }
}

}  // namespace

index_report create_index(engine& eng, const std::vector<std::string>& urls,
                          const std::string& path, const index_options& options) {
  if (urls.empty()) throw failure(error(errc::usage, "no shards").hint("name some to index"));
  for (const std::string& url : urls) {
    check_is_text(url);
    if (!options.urls_as_given) check_is_no_command(url);
  }
  check_outputs(urls, path, options);
  const held_file alone = hold_index(path);
  written_file index_file(path, "index");  // first: if it fails, no data is read in vain
  check_nobody_else_writes(path);
  const std::string sidecar = sidecar_place(path);
  std::optional<written_file> sidecar_file;
  if (options.offsets) sidecar_file.emplace(sidecar, "offsets");
  index_report report;
  auto shards = scanned(eng, urls, path, options, report.has_left_out);
  if (!shards) {
    report.interrupted = true;
    return report;
  }
  index_file.append(list_begin);
  shard_index offsets;
  for (indexed_shard& s : *shards) {
    index_file.append((offsets.shards.empty() ? "\n" : ",\n") + s.entry);
    offsets.shards.push_back(std::move(s.offsets));
  }
  index_file.append(after_list(options));
  if (sidecar_file) sidecar_file->append(offsets_text(offsets));
  if (commit_index(index_file, path, sidecar_file ? &*sidecar_file : nullptr)) {
    report.removed_offsets = sidecar;
  }
  if (sidecar_file) report.offsets = sidecar;
  report.shards = offsets.shards.size();
  report.samples = static_cast<std::uint64_t>(offsets.samples());
  report.bytes = static_cast<std::uint64_t>(offsets.bytes());
  return report;
}

}  // namespace millrace
