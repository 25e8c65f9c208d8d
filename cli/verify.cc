#include "tools/inspect/verify.h"

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stop_token>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "engine/base/units.h"
#include "engine/base/words.h"
#include "pipeline/samples/sample_name.h"
#include "pipeline/wids/read_index.h"

namespace millrace::cli {
namespace {

struct verify_arguments {
  shard_arguments shards;
  std::string index;
  std::optional<std::string> required;
  bool images = false;
  bool json = false;
};

// Parses "jpg;jpeg,cls": each required field, with its alternatives.
std::vector<std::vector<std::string>> required_fields(const std::string& text) {
  std::vector<std::vector<std::string>> out;
  // So that "jpg," has an empty second field, and "" an empty first one.
  std::istringstream fields(text + ",");
  for (std::string field; std::getline(fields, field, ',');) {
    auto& any = out.emplace_back();
    std::istringstream others(field);
    for (std::string other; std::getline(others, other, ';');) {
      if (other.empty()) continue;
      if (!is_extension(other)) {
        throw failure(
            error(errc::usage,
                  fmt::format("--require '{}' names a field that no sample can have", text))
                .hint("write extensions in lower case, without leading dots or blanks: jpg,cls"));
      }
      any.push_back(other);
    }
    if (!any.empty()) continue;
    throw failure(error(errc::usage, fmt::format("--require '{}' names an empty field", text))
                      .hint("write extensions: jpg,cls or jpg;png,cls"));
  }
  return out;
}

nlohmann::json to_json(const verify_report& r) {
  return {{"shards", r.shards},         {"samples", r.samples},
          {"bytes", r.payload_bytes},   {"without_extension", r.without_extension},
          {"meta_files", r.meta_files}, {"not_files", r.not_files},
          {"unreadable", r.unreadable}, {"missing", r.missing},
          {"ok", r.is_well()},          {"interrupted", r.interrupted}};
}

void print(const verify_report& r) {
  std::string also;
  if (r.without_extension > 0) {
    also += fmt::format(", {} without an extension (in no sample)",
                        counted(r.without_extension, "file"));
  }
  if (r.meta_files > 0) {
    also += fmt::format(", {} named __x__ or below such a folder (in no sample)",
                        counted(r.meta_files, "file"));
  }
  if (r.not_files > 0) also += ", " + counted(r.not_files, "link or device", "links or devices");
  if (r.missing > 0)
    also += fmt::format(", {} of the index not checked", counted(r.missing, "shard"));
  const std::string verdict = r.is_well() ? "all is well" : counted(r.problems, "problem");
  fmt::print("{}{}, {}, {}{}: {}\n", r.interrupted ? "stopped after " : "",
             counted(r.shards, "shard"), counted(r.samples, "sample"),
             format_bytes(r.payload_bytes), also, verdict);
}

int verify(const environment& e, const verify_arguments& a) {
  engine eng(a.shards.engine(e));
  std::optional<shard_index> index;
  if (!a.index.empty()) index = read_index(eng, a.index, a.shards.base);
  std::vector<std::string> urls;
  listing_facts listed;
  if (!a.shards.specs.empty()) urls = a.shards.urls(e, &listed);
  if (a.shards.specs.empty() && index) {
    for (const auto& s : index->shards) urls.push_back(s.url);
  }
  if (urls.empty()) {
    throw failure(error(errc::usage, "no shards").hint("name shards, or an --index"));
  }
  json_list problems("problems");
  job_progress done;
  verify_options how{.index = index ? &*index : nullptr,
                     .are_all = listed.lists_any,
                     .images = a.images,
                     .progress = &done};
  if (a.required) how.required = required_fields(*a.required);
  how.found = [&](const error& why) {
    const std::string told = in_program_words(why).message();
    a.json ? problems.add(told) : print_line(told);
  };
  how.stop = stop_requested();  // before this, a signal ends it at once
  std::optional<progress> shown;
  // Progress would overwrite an unfinished list of problems on the same terminal.
  if (!a.json || isatty(STDOUT_FILENO) == 0) {
    shown.emplace("verify", sample_walk::work_of(urls),
                  [&] { return work_done{done.bytes(), done.shards()}; });
  }
  const verify_report report = verify_shards(eng, urls, how);
  shown.reset();
  a.json ? problems.end(to_json(report)) : print(report);
  if (report.interrupted) return exit_code_of_interrupt();
  return report.problems == 0 ? 0 : report.unreadable > 0 ? exit_code(errc::io_failed) : 1;
}

}  // namespace

action add_verify(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("verify", "checks structure, keys, images, and digests against an index");
  auto a = std::make_shared<verify_arguments>();
  a->shards.add_to(*command, false);
  command
      ->add_option(
          "--index", a->index,
          "compare counts, sizes, MD5s and offsets with this index; folders and patterns must "
          "contain all of its shards")
      ->type_name("URL")
      ->group("Checks");
  command->add_flag("--images", a->images, "decode every image")->group("Checks");
  command
      ->add_option("--require", a->required,
                   "fields that every sample must have: jpg,cls; with alternatives: jpg;png,cls")
      ->type_name("FIELDS")
      ->group("Checks");
  add_json(*command, a->json);
  command->footer(
      "Prints one line per problem. Exit code 0: no problems; 1: some; 4: a shard cannot be\n"
      "reached or read.\n\nExample:\n"
      "  millrace verify train-{000000..000146}.tar --images --require jpg,cls");
  return [a](const environment& e) { return verify(e, *a); };
}

}  // namespace millrace::cli
