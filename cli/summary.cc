#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "io/brace_expand.h"
#include "pipeline/tools/names.h"
#include "pipeline/tools/scan.h"
#include "pipeline/wids/shard_index.h"

namespace millrace::cli {
namespace {

struct arguments {
  shard_arguments shards;
  std::string index;
  bool samples = false;
  bool json = false;
};

struct known {
  std::uint64_t bytes = 0;
  std::optional<std::uint64_t> samples;
};

// As `ls shards | shardsum` does: patterns, a line each, and nothing else.
int summarize_names() {
  std::vector<std::string> names;
  for (std::string line; std::getline(std::cin, line);) {
    if (!line.empty()) names.push_back(line);
  }
  for (const std::string& pattern : brace_summary(names)) fmt::print("{}\n", pattern);
  return 0;
}

std::map<std::string, known> facts_of(const environment& e, const arguments& a,
                                      const std::vector<std::string>& urls) {
  std::map<std::string, known> out;
  engine eng(a.shards.engine(e));
  if (!a.index.empty()) {
    for (const auto& s : read_index(eng, a.index).shards) {
      out[s.url] = {static_cast<std::uint64_t>(s.bytes), static_cast<std::uint64_t>(s.samples)};
    }
    return out;
  }
  if (a.samples) {
    for (const shard_facts& f : eng.run(scan(urls, {.md5 = false}))) {
      if (!f.problems.empty()) throw failure(f.problems.front());
      out[f.url].samples = f.samples.size();
    }
  }
  for (const std::string& url : urls) {
    std::error_code none;  // of a URL that is no local file nothing is known without reading it
    const auto bytes = std::filesystem::file_size(url, none);
    if (!none) out[url].bytes = bytes;
  }
  return out;
}

int summary(const environment& e, const arguments& a) {
  const bool from_stdin = a.shards.specs.size() == 1 && a.shards.specs.front() == "-";
  if (from_stdin || (a.shards.specs.empty() && a.index.empty())) return summarize_names();
  std::vector<std::string> urls;
  if (a.shards.specs.empty()) {
    engine eng(a.shards.engine(e));
    for (const auto& s : read_index(eng, a.index).shards) urls.push_back(s.url);
  } else {
    urls = a.shards.urls(e);
  }
  const auto facts = facts_of(e, a, urls);
  auto groups = nlohmann::json::array();
  nlohmann::json all{{"shards", 0}, {"bytes", 0}, {"samples", nullptr}};
  for (const std::string& pattern : brace_summary(urls)) {
    std::uint64_t shards = 0;
    known sum{.bytes = 0, .samples = 0};
    for (const std::string& name : brace_expand(pattern).value()) {
      ++shards;
      const auto it = facts.find(name);
      sum.bytes += it == facts.end() ? 0 : it->second.bytes;
      const bool counted = it != facts.end() && it->second.samples && sum.samples;
      sum.samples = counted ? std::optional(*sum.samples + *it->second.samples) : std::nullopt;
    }
    const std::string samples =
        sum.samples ? fmt::format(", {} samples", *sum.samples) : std::string();
    if (!a.json) fmt::print("{}\t{} shards{}, {} bytes\n", pattern, shards, samples, sum.bytes);
    nlohmann::json group{{"pattern", pattern}, {"shards", shards}, {"bytes", sum.bytes}};
    group["samples"] = sum.samples ? nlohmann::json(*sum.samples) : nlohmann::json();
    all["shards"] = all["shards"].get<std::uint64_t>() + shards;
    all["bytes"] = all["bytes"].get<std::uint64_t>() + sum.bytes;
    if (sum.samples)
      all["samples"] = all["samples"].is_null()
                           ? *sum.samples
                           : all["samples"].get<std::uint64_t>() + *sum.samples;
    groups.push_back(std::move(group));
  }
  all["patterns"] = std::move(groups);
  if (a.json) fmt::print("{}\n", all.dump());
  return 0;
}

}  // namespace

action add_summary(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "summary", "brace patterns of shards, their number and bytes; names on stdin without SHARD");
  auto a = std::make_shared<arguments>();
  a->shards.add_to(*command, false);
  command->add_option("--index", a->index, "take counts and sizes from this index");
  command->add_flag("--samples", a->samples, "count samples as well, by reading every header");
  command->add_flag("--json", a->json, "print one JSON object on the last line");
  return [a](const environment& e) { return summary(e, *a); };
}

}  // namespace millrace::cli
