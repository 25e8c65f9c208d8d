#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/index_sample.h"
#include "cli/interrupt.h"
#include "engine/base/printable.h"
#include "engine/base/words.h"
#include "engine/host/standard_error.h"
#include "pipeline/wids/index_entries.h"
#include "tools/index/create_index.h"
#include "tools/index/index_files.h"
#include "tools/index/index_summary.h"
#include "tools/index/update_index.h"
#include "tools/jobs/names.h"

namespace millrace::cli {
namespace {

struct create_arguments {
  shard_arguments shards;
  std::string output = "shardindex.json";
  std::optional<std::string> name;
  std::string info_file;
  std::optional<std::string> base;
  bool offsets = false;
  bool no_md5 = false;
  bool compat = false;
  bool json = false;

  void add_to(CLI::App& app, bool required) {
    app.add_option("SHARD", shards.specs, "shards: paths, URLs, brace ranges, '::' lists, @FILE")
        ->required(required);
    app.add_flag("--allow-pipe", shards.allow_pipe, "pipe: URLs may run commands")->group("Input");
    app.option_defaults()->group("Index");
    app.add_option("-o,--output", output, "the index to write")
        ->type_name("FILE")
        ->capture_default_str();
    app.add_option("-n,--name", name, "name of the dataset [from the first shard's name]");
    app.add_option("-i,--info", info_file, "file with a description of the dataset")
        ->type_name("FILE");
    app.add_option("-b,--base", base, "base of relative URLs, recorded in the index")
        ->type_name("URL");
    app.add_flag("--offsets", offsets,
                 "also write the offset of each sample, to a file next to the index");
    app.add_flag("--compat", compat,
                 "write URLs as given, as widsindex does; all readers resolve relative ones "
                 "against the index's folder");
    add_json(app, json);
    app.add_flag("--no-md5", no_md5, "no digests: large files are skipped, not read");
  }
};

// This may be intended: the samples then come twice in each epoch.
void report_repeated(const std::vector<std::string>& urls) {
  const auto twice = repeated_shard(urls);
  if (!twice) return;
  to_stderr("millrace: {} is named more than once; the index lists it as often\n",
            printable(redacted(*twice)));
}

// The text goes to stderr, because stdout is byte-for-byte that of `widsindex create`.
void report_created(const create_arguments& a, const index_report& made) {
  if (!made.removed_offsets.empty()) {
    to_stderr("removed {}, which belonged to the previous index; --offsets writes a new one\n",
              printable(made.removed_offsets));
  }
  if (a.json) {
    nlohmann::json told{{"index", a.output},
                        {"shards", made.shards},
                        {"samples", made.samples},
                        {"bytes", made.bytes}};
    if (!made.offsets.empty()) told["offsets"] = made.offsets;
    print_json(told);
  } else {
    to_stderr("wrote {}{}: {}, {}\n", printable(a.output),
              made.offsets.empty() ? "" : " and " + printable(made.offsets),
              counted(made.shards, "shard"), counted(made.samples, "sample"));
  }
  if (made.has_left_out) {
    to_stderr("removed from the URLs: users, passwords, and unknown parameters\n");
  }
}

int create(const environment& e, const create_arguments& a) {
  const auto urls = a.shards.urls(e);
  index_options how{.name = a.name.value_or(""),
                    .base = a.base,
                    .offsets = a.offsets,
                    .md5 = !a.no_md5,
                    .urls_as_given = a.compat};
  if (!a.name) {
    how.name = dataset_name(a.shards.specs.front(), urls);
    if (!a.json) fmt::print("setting name to {}\n", printable(how.name));
  }
  report_repeated(urls);
  if (!a.info_file.empty()) {
    how.info = read_local(a.info_file);
    how.inputs = {a.info_file};
  }
  if (!a.json) how.read = [](const std::string& url) { print_line(printable(redacted(url))); };
  job_progress done;
  how.progress = &done;
  how.stop = stop_requested();
  engine eng(a.shards.engine(e));
  amount_of_work all = sample_walk::work_of(urls);
  if (a.no_md5) all.bytes = 0;  // most of them are skipped
  progress shown("index", all, [&] { return work_done{done.bytes(), done.shards()}; });
  const index_report made = create_index(eng, urls, a.output, how);
  shown.end();
  if (!made.interrupted) {
    report_created(a, made);
    return 0;
  }
  if (a.json) {
    print_json({{"interrupted", true}});
  } else {
    print_line("stopped: no index was written");
  }
  return exit_code_of_interrupt();
}

struct update_arguments {
  std::string file;
  index_changes changes;
  bool keep = false;
  bool no_keep = false;

  void add_to(CLI::App& app) {
    app.add_option("FILE", file, "the index")->required();
    app.option_defaults()->group("Index");
    app.add_option("-n,--name", changes.name, "name of the dataset");
    app.add_option("-i,--info", changes.info, "description of the dataset");
    app.add_option("-b,--base", changes.base, "base of the shards' URLs")->type_name("URL");
    app.add_option("-d,--dir", changes.folder, "folder of every shard")->type_name("DIR");
    app.add_flag("-D,--nodir", changes.no_folder, "remove the folders of all shards")
        ->excludes("--dir");
    app.add_flag("-B,--rebase", changes.rebase, "make the shards' folder the base");
    app.add_flag("-k,--keep", keep, "set the keep flag");
    app.add_flag("-K,--nokeep", no_keep, "clear the keep flag")->excludes("--keep");
  }
};

int update(const environment& e, const update_arguments& a, bool json) {
  index_changes changes = a.changes;
  if (a.keep || a.no_keep) changes.keep = a.keep;
  changes.rebasing = [](const std::string& base) {
    fmt::print("rebasing to {}\n", printable(base));
  };
  engine eng(engine_options::from(e.variables));
  const index_update made = update_index(eng, a.file, changes);
  if (json) {
    print_json({{"index", a.file}, {"shards", made.shards}});
  } else {
    to_stderr("wrote {}: {}; the previous one is {}\n", printable(a.file),
              counted(made.shards, "shard"), printable(made.copy));
  }
  return 0;
}

// Rounded like Python's int(a / b).
double whole_part(std::int64_t a, std::int64_t b) {
  return b == 0 ? 0 : std::floor(static_cast<double>(a) / static_cast<double>(b));
}

std::string or_none(const std::string& text) {
  return text.empty() ? "None" : text;
}

// The same for text with several lines.
std::string printable_lines(const std::string& text) {
  std::istringstream lines(text);
  std::string out;
  for (std::string line; std::getline(lines, line);) {
    out += printable(line);
    if (!lines.eof()) out += '\n';
  }
  return out;
}

nlohmann::json to_json(const index_summary& s, const std::string& file) {
  return {{"file", file},       {"name", s.name},         {"info", s.info},      {"base", s.base},
          {"shards", s.shards}, {"samples", s.samples},   {"bytes", s.bytes},    {"first", s.first},
          {"last", s.last},     {"datasets", s.datasets}, {"offsets", s.offsets}};
}

void print(const index_summary& s, const std::string& file) {
  fmt::print("filename: {}\n", file);
  fmt::print("            name: {}\n", or_none(printable(s.name)));
  fmt::print("            info: {}\n", or_none(printable_lines(s.info)));
  fmt::print("            base: {} (assumed: {})\n", or_none(printable(s.base)),
             std::filesystem::path(file).parent_path().string());
  fmt::print("      total size: {}\n", with_suffix(static_cast<double>(s.bytes)));
  fmt::print("   total samples: {}\n", with_suffix(static_cast<double>(s.samples)));
  fmt::print(" avg sample size: {}\n", with_suffix(whole_part(s.bytes, s.samples)));
  fmt::print("  avg shard size: {}\n", with_suffix(whole_part(s.bytes, s.shards)));
  fmt::print("     first shard: {}\n", printable(s.first));
  fmt::print("      last shard: {}\n", printable(s.last));
  if (s.datasets > 0) fmt::print("        datasets: {}\n", s.datasets);
  fmt::print("         offsets: {}\n\n", s.offsets ? "of every sample" : "none");
}

int info(const environment& e, const std::vector<std::string>& files, bool table, bool json) {
  engine eng(engine_options::from(e.variables));
  auto said = nlohmann::json::array();
  if (table && !json) fmt::print("file\tname\tnbytes\tnsamples\tbase\tlast\tdatasets\n");
  for (const std::string& file : files) {
    const index_summary found = summary_of_index(eng, file);
    if (json) {
      said.push_back(to_json(found, redacted(file)));
      continue;
    }
    const std::string shown = printable(redacted(file));
    if (table) {
      fmt::print("{}\t{}\t{}\t{}\t{}\t{}\t{}\n", shown, or_none(printable(found.name)), found.bytes,
                 found.samples, or_none(printable(found.base)), printable(found.last),
                 found.datasets);
    } else {
      print(found, shown);
    }
  }
  if (json) print_json({{"indices", said}});
  return 0;
}

}  // namespace

action add_index(CLI::App& app) {
  CLI::App* index =
      app.add_subcommand("index", "writes or reads an index of shards (wids v1 JSON)");
  index->require_subcommand(0, 1);
  auto direct = std::make_shared<create_arguments>();
  direct->add_to(*index, false);
  auto made = std::make_shared<create_arguments>();
  CLI::App* creating = index->add_subcommand("create", "lists counts, sizes and digests of shards");
  made->add_to(*creating, true);

  auto changed = std::make_shared<update_arguments>();
  CLI::App* updating = index->add_subcommand(
      "update", "changes an index; the previous one, and its offsets, are kept as .bak files");
  changed->add_to(*updating);

  auto files = std::make_shared<std::vector<std::string>>();
  auto table = std::make_shared<bool>();
  CLI::App* informing = index->add_subcommand("info", "prints a summary of an index");
  informing->add_option("FILE", *files, "indices")->required();
  informing->add_flag("-t,--table", *table, "print a table with one line per index")
      ->group("Output");

  auto one = std::make_shared<index_sample_arguments>();
  CLI::App* showing = index->add_subcommand("sample", "prints one sample, by its number");
  showing->add_option("FILE", one->file, "the index")->required();
  showing->add_option("INDEX", one->index, "number of the sample, from 0")
      ->required()
      ->check(whole_in_range(0, std::numeric_limits<std::int64_t>::max()));
  showing->option_defaults()->group("Output");
  showing->add_option("-c,--cat", one->field, "write the bytes of this field to stdout")
      ->type_name("FIELD");
  showing->add_flag("-r,--raw,-p,--python", one->raw,
                    "accepted for compatibility: fields are never decoded");
  showing->add_option("-w,--width", one->width, "characters of the longest line")
      ->capture_default_str();
  auto json = std::make_shared<bool>();
  for (CLI::App* each : {updating, informing}) add_json(*each, *json);
  add_json(*showing, one->json);
  showing->get_option("--json")->excludes(showing->get_option("--cat"));
  index->footer("Example:\n  millrace index train-{000000..000146}.tar -o train.json --offsets");
  creating->footer(
      "Example:\n  millrace index create train-{000000..000146}.tar -o train.json --offsets");
  updating->footer("Example:\n  millrace index update train.json --name imagenet");
  informing->footer("Example:\n  millrace index info --table train.json val.json");
  showing->footer("Example:\n  millrace index sample train.json 1234");

  return [=](const environment& e) {
    if (creating->parsed()) return create(e, *made);
    if (updating->parsed()) return update(e, *changed, *json);
    if (informing->parsed()) return info(e, *files, *table, *json);
    if (showing->parsed()) return show_index_sample(e, *one);
    if (direct->shards.specs.empty()) {
      throw failure(error(errc::usage, "no shards").hint("see `millrace index --help`"));
    }
    return create(e, *direct);
  };
}

}  // namespace millrace::cli
