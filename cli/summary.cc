#include <fmt/format.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/units.h"
#include "engine/base/words.h"
#include "engine/host/standard_error.h"
#include "io/names/brace_expand.h"
#include "io/names/folder_listing.h"
#include "io/names/url.h"
#include "io/names/url_scheme.h"
#include "pipeline/formats/scan.h"
#include "pipeline/shards/shard_index.h"
#include "pipeline/wids/index_entries.h"
#include "pipeline/wids/read_index.h"
#include "tools/jobs/names.h"

namespace millrace::cli {
namespace {

struct summary_arguments {
  shard_arguments shards;
  std::string index;
  bool samples = false;
  bool json = false;
};

// The known totals of one shard, or of several.
struct known {
  std::optional<std::uint64_t> bytes;
  std::optional<std::uint64_t> samples;

  void add(const known& more) {
    bytes = bytes && more.bytes ? std::optional(*bytes + *more.bytes) : std::nullopt;
    samples = samples && more.samples ? std::optional(*samples + *more.samples) : std::nullopt;
  }
};

struct findings {
  std::map<std::string, known> of_shard;
  std::vector<error> problems;
  std::optional<std::uint64_t> stopped_after;  // shards; by a signal
};

bool is_file(const std::string& url) {
  const auto where = parse_url(url);
  return where && where->scheme == "file";
}

// Reading these would run a command, or consume input meant for another reader.
bool is_read_once(const std::string& url) {
  const auto where = parse_url(url);
  return where && (where->scheme == "-" || where->scheme == "pipe");
}

void add_from_index(const environment& e, const summary_arguments& a,
                    const std::vector<std::string>& urls, findings& found) {
  engine eng(a.shards.engine(e));
  const shard_index said = read_index(eng, a.index, a.shards.base);
  const index_entries entries(said, urls);
  for (const std::string& url : urls) {
    const auto [shard, is_ambiguous] = entries.find(url);
    if (shard == nullptr) {
      found.problems.push_back(not_listed(url, is_ambiguous));
      continue;
    }
    known& k = found.of_shard[url];
    if (shard->bytes > 0) k.bytes = static_cast<std::uint64_t>(shard->bytes);
    k.samples = static_cast<std::uint64_t>(shard->samples);
  }
}

// Reads the shards: counts their samples, or only opens them.
void add_from_shards(const environment& e, const summary_arguments& a,
                     std::vector<std::string> urls, findings& found) {
  if (urls.empty()) return;
  const std::stop_token stop = stop_requested();
  engine eng(a.shards.engine(e));
  const amount_of_work all{.bytes = a.samples ? bytes_of_files(urls) : 0, .items = urls.size()};
  auto data =
      eng.run(scan(std::move(urls), {.only_open = !a.samples, .md5 = false, .keys = false}));
  std::atomic<std::uint64_t> shards = 0;
  progress shown("summary", all, [&] { return work_done{data.stats().sources.bytes, shards}; });
  const bool whole = take_until_stopped(data, stop, [&](const shard_facts& f) {
    ++shards;
    for (const error& why : f.problems) found.problems.push_back(why);
    if (!f.problems.empty()) return;
    known& k = found.of_shard[f.url];
    if (f.bytes > 0) k.bytes = f.bytes;
    if (a.samples) k.samples = f.samples.size();
  });
  if (!whole) found.stopped_after = shards;
}

// `listed`: sizes from stores' listings; such objects exist, and are not opened.
findings facts_of(const environment& e, const summary_arguments& a,
                  const std::vector<std::string>& urls, const object_sizes& listed) {
  findings found;
  if (!a.index.empty()) {
    add_from_index(e, a, urls, found);
    return found;
  }
  std::vector<std::string> to_open;
  for (const std::string& url : urls) {
    if (const auto told = listed.find(url); told != listed.end() && !a.samples) {
      found.of_shard[url].bytes = told->second;
    } else if (a.samples || (!is_file(url) && !is_read_once(url))) {
      to_open.push_back(url);
    } else if (is_file(url)) {
      const std::string path = parse_url(url).value().path;
      std::error_code failed;
      const auto bytes = std::filesystem::file_size(path, failed);
      if (failed) {
        found.problems.push_back(error(kind_of(failed.value()), "cannot read the shard")
                                     .at(path)
                                     .cause(failed.value())
                                     .hint(failed == std::errc::no_such_file_or_directory
                                               ? "check the path"
                                               : hint_on_path(failed.value())));
      } else {
        found.of_shard[url].bytes = bytes;
      }
    }
  }
  add_from_shards(e, a, std::move(to_open), found);
  return found;
}

nlohmann::json or_null(const std::optional<std::uint64_t>& n) {
  return n ? nlohmann::json(*n) : nlohmann::json();
}

nlohmann::json to_json(std::uint64_t shards, const known& k) {
  return {{"shards", shards}, {"bytes", or_null(k.bytes)}, {"samples", or_null(k.samples)}};
}

std::string text_of(std::uint64_t shards, const known& k) {
  std::string out = counted(shards, "shard");
  if (k.samples) out += ", " + counted(*k.samples, "sample");
  return out + (k.bytes ? fmt::format(", {} ({} bytes)", format_bytes(*k.bytes), *k.bytes)
                        : std::string(", size not known"));
}

// Prints one line on stderr for all; returns the exit code of the first.
int report_problems(const std::vector<error>& problems) {
  if (problems.empty()) return 0;
  error first = problems.front();
  if (problems.size() > 1) {
    first.hint(fmt::format("{} could not be counted", counted(problems.size(), "shard")));
  }
  to_stderr("millrace: {}\n", in_program_words(first).message());
  return exit_code(first.kind());
}

// The pattern in a form usable as a SHARD: '::' within a path would split it in two.
std::string as_shard(const std::string& pattern) {
  if (has_scheme(pattern) || pattern.find("::") == pattern.npos) return pattern;
  std::string out = "file:";
  for (const char c : pattern) {
    out += c == ':' ? "%3A" : c == '%' ? "%25" : std::string(1, c);
  }
  return out;
}

int tell(const std::vector<std::string>& urls, const findings& found, const summary_arguments& a) {
  auto groups = nlohmann::json::array();
  known all{.bytes = 0, .samples = 0};
  for (const std::string& pattern : brace_summary(urls)) {
    std::uint64_t shards = 0;
    known sum{.bytes = 0, .samples = 0};
    for (const std::string& name : brace_expand(pattern).value()) {
      ++shards;
      const auto it = found.of_shard.find(name);
      if (it == found.of_shard.end() && found.stopped_after) continue;  // not looked at
      sum.add(it == found.of_shard.end() ? known{} : it->second);
    }
    all.add(sum);
    auto group = to_json(shards, sum);
    group["pattern"] = redacted(as_shard(pattern));
    groups.push_back(std::move(group));
    if (!a.json)
      fmt::print("{}\t{}\n", printable(redacted(as_shard(pattern))), text_of(shards, sum));
  }
  if (found.stopped_after && !a.json) {
    fmt::print("stopped after {} of {}\n", *found.stopped_after, counted(urls.size(), "shard"));
  }
  if (const auto twice = repeated_shard(urls)) {
    to_stderr("millrace: {} is named more than once; patterns count it once\n",
              printable(redacted(*twice)));
  }
  const int code = report_problems(found.problems);
  if (a.json) {
    auto out = to_json(urls.size(), all);
    out["interrupted"] = found.stopped_after.has_value();
    out["patterns"] = std::move(groups);
    out["problems"] = nlohmann::json::array();
    for (const error& why : found.problems) {
      out["problems"].push_back(in_program_words(why).message());
    }
    print_json(out);
  }
  return found.stopped_after ? exit_code_of_interrupt() : code;
}

// Like `ls shards | shardsum`: prints only patterns, one per line.
int summarize_names(bool json) {
  std::vector<std::string> names;
  for (std::string line; std::getline(std::cin, line);) {
    if (!line.empty()) names.push_back(line);
  }
  if (std::ferror(stdin) != 0) {
    throw failure(error(kind_of(errno), "cannot read the names from stdin").cause(errno));
  }
  auto groups = nlohmann::json::array();
  for (const std::string& pattern : brace_summary(names)) {
    auto group = to_json(brace_expand(pattern).value().size(), {});
    group["pattern"] = redacted(pattern);
    groups.push_back(std::move(group));
    if (!json) fmt::print("{}\n", printable(redacted(pattern)));
  }
  if (json) {
    auto out = to_json(names.size(), {});
    out["patterns"] = std::move(groups);
    out["problems"] = nlohmann::json::array();
    print_json(out);
  }
  return 0;
}

int summary(const environment& e, const summary_arguments& a) {
  const bool from_stdin = a.shards.specs.size() == 1 && a.shards.specs.front() == "-";
  if (from_stdin || (a.shards.specs.empty() && a.index.empty())) return summarize_names(a.json);
  std::vector<std::string> urls;
  listing_facts listed;
  if (a.shards.specs.empty()) {
    engine eng(a.shards.engine(e));
    for (const auto& s : read_index(eng, a.index, a.shards.base).shards) urls.push_back(s.url);
  } else {
    urls = a.shards.urls(e, &listed);
  }
  return tell(urls, facts_of(e, a, urls, listed.sizes), a);
}

}  // namespace

action add_summary(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("summary", "prints brace patterns of shards: number, samples, bytes");
  auto a = std::make_shared<summary_arguments>();
  a->shards.add_to(*command, false);
  command->add_option("--index", a->index, "take counts and sizes from this index")
      ->type_name("URL")
      ->group("Input");
  command->add_flag("--samples", a->samples, "also count samples, by reading every header")
      ->excludes("--index")
      ->group("Input");
  add_json(*command, a->json);
  command->footer(
      "Without SHARD, or with -, reads names from stdin, one per line, and prints patterns.\n"
      "\nExamples:\n  millrace summary 'data/*.tar' --samples\n  ls data | millrace summary");
  return [a](const environment& e) { return summary(e, *a); };
}

}  // namespace millrace::cli
