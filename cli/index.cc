#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>

#include "cli/command.h"
#include "cli/index_lock.h"
#include "cli/index_sample.h"
#include "cli/index_text.h"
#include "cli/index_update.h"
#include "cli/interrupt.h"
#include "cli/outputs.h"
#include "engine/json_tree.h"
#include "engine/printable.h"
#include "engine/scope.h"
#include "engine/standard_error.h"
#include "engine/words.h"
#include "engine/written_file.h"
#include "io/names/folder_listing.h"
#include "io/names/url_scheme.h"
#include "pipeline/formats/scan.h"
#include "pipeline/shard_index.h"
#include "pipeline/wids/indexed_dataset.h"
#include "pipeline/wids/read_index.h"
#include "pipeline/wids/sidecar.h"
#include "tools/names.h"

namespace millrace::cli {
namespace {

using nlohmann::ordered_json;

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

// The shard's URL as the index names it: relative to the index's folder, since readers resolve it
// from there, and without credentials, since readers have their own.
std::string url_in_index(const create_arguments& a, const std::string& url) {
  namespace fs = std::filesystem;
  if (a.compat) return url;
  if (has_scheme(url) || url.starts_with('/')) return without_secrets(url);
  const auto folder = fs::path(a.output).parent_path();
  if (a.base || folder.empty()) return url;
  const auto from = fs::absolute(folder).lexically_normal();
  return fs::absolute(url).lexically_normal().lexically_relative(from).string();
}

// One entry of the shard list.
ordered_json entry_of(const shard_facts& f, const std::string& url, bool md5) {
  ordered_json entry{{"url", url}};
  if (md5) entry["md5sum"] = f.md5;
  entry["nsamples"] = f.samples.size();
  if (md5) entry["filesize"] = f.bytes;
  return entry;
}

// `offsets`: the file with the offsets, or empty. The text goes to stderr, because stdout is
// byte-for-byte that of `widsindex create`.
void tell_of_created(const create_arguments& a, const std::string& offsets,
                     const shard_index& made) {
  if (!a.json) {
    to_stderr("wrote {}{}: {}, {}\n", printable(a.output),
              offsets.empty() ? "" : " and " + printable(offsets),
              counted(made.shards.size(), "shard"),
              counted(static_cast<std::uint64_t>(made.samples()), "sample"));
    return;
  }
  nlohmann::json told{{"index", a.output},
                      {"shards", made.shards.size()},
                      {"samples", made.samples()},
                      {"bytes", made.bytes()}};
  if (!offsets.empty()) told["offsets"] = offsets;
  print_json(told);
}

// The default name of a dataset: that of its first shard; of a URL, only its path counts.
std::string name_of(const std::string& spec, const std::vector<std::string>& urls) {
  if (!has_scheme(spec) && spec.find("://") == spec.npos) {
    const std::string name = dataset_name(spec);
    return !name.empty() ? name : dataset_name(urls.front());  // of "./"
  }
  const auto where = parse_url(urls.front());
  const bool has_path = where && where->scheme != "pipe";
  return has_path ? dataset_name(where->path.substr(0, where->path.find('?'))) : "";
}

// JSON is UTF-8: a name in another encoding would become another file's name.
void check_is_text(const std::string& url) {
  if (is_utf8(url)) return;
  throw failure(error(errc::usage, "an index cannot name a shard whose name is not UTF-8")
                    .at(printable(url))
                    .hint("rename the file"));
}

// A command may contain passwords, and would run on the machines of the index's readers.
void check_is_no_command(const create_arguments& a, const std::string& url) {
  const auto where = parse_url(url);
  if (a.compat || !where || where->scheme != "pipe") return;
  throw failure(error(errc::usage, "an index does not list commands, which may hold secrets")
                    .at(url)
                    .hint("list the shards' own URLs; --compat writes commands as they are"));
}

// This may be intended: the samples then come twice in each epoch.
void tell_of_repeated(const std::vector<std::string>& urls) {
  const auto twice = repeated_shard(urls);
  if (!twice) return;
  to_stderr("millrace: {} is named more than once; the index lists it as often\n",
            printable(redacted(*twice)));
}

struct indexed_shard {
  ordered_json entry;
  shard_index::shard offsets;
};

// The contents of the shards, in order of their URLs; nullopt after a signal. Sets `has_left_out`
// if a URL had secrets.
std::optional<std::vector<indexed_shard>> scanned(const environment& e, const create_arguments& a,
                                                  const std::vector<std::string>& urls,
                                                  bool& has_left_out) {
  const std::stop_token stop = stop_requested();
  engine eng(a.shards.engine(e));
  auto data = eng.run(scan(urls, {.md5 = !a.no_md5, .keys = false}));
  std::vector<indexed_shard> shards;
  std::atomic<std::uint64_t> done = 0;
  amount_of_work all = sample_walk::work_of(urls);
  if (a.no_md5) all.bytes = 0;  // most of them are skipped
  progress shown("index", all, [&] { return work_done{data.stats().bytes_read, done}; });
  const bool whole = take_until_stopped(data, stop, [&](const shard_facts& f) {
    if (!f.problems.empty()) {
      error why = f.problems.front();
      const bool is_read = exit_code(why.kind()) != exit_code(errc::io_failed);
      if (is_read && why.what_to_do().empty()) {
        why.hint("`millrace verify` lists all that is wrong with the shards");
      }
      throw failure(why);
    }
    if (!a.json) print_line(printable(redacted(f.url)));
    const std::string url = url_in_index(a, f.url);
    has_left_out = has_left_out || (has_scheme(f.url) && url != f.url);
    indexed_shard& shard = shards.emplace_back();
    shard.entry = entry_of(f, url, !a.no_md5);
    shard.offsets.url = url;
    shard.offsets.samples = std::ssize(f.samples);
    shard.offsets.bytes = static_cast<std::int64_t>(f.bytes);
    shard.offsets.md5 = f.md5;
    if (a.offsets) list_places(f, shard.offsets);
    ++done;
  });
  if (!whole) return std::nullopt;
  std::ranges::sort(shards, {},
                    [](const indexed_shard& s) -> const std::string& { return s.offsets.url; });
  return shards;
}

int create(const environment& e, const create_arguments& a) {
  const auto urls = a.shards.urls(e);
  std::string name = a.name.value_or("");
  if (!a.name) {
    name = name_of(a.shards.specs.front(), urls);
    if (!a.json) fmt::print("setting name to {}\n", printable(name));
  }
  for (const std::string& url : urls) {
    check_is_text(url);
    check_is_no_command(a, url);
  }
  tell_of_repeated(urls);
  const std::string info = a.info_file.empty() ? "" : read_local(a.info_file);
  bool has_left_out = false;
  const std::string sidecar = sidecar_place(a.output);
  auto inputs = local_paths(urls);
  if (!a.info_file.empty()) inputs.push_back(a.info_file);
  check_output(a.output, index_document, inputs);
  for (const auto& path : {sidecar, sidecar_of(a.output)})
    check_output(path, index_sidecar, inputs);
  const held_file alone = hold_index(a.output);
  written_file index_file(a.output, "index");  // first: if it fails, no data is read in vain
  check_nobody_else_writes(a.output);
  std::optional<written_file> sidecar_file;
  if (a.offsets) sidecar_file.emplace(sidecar, "offsets");
  auto shards = scanned(e, a, urls, has_left_out);
  if (!shards) {
    if (a.json) {
      print_json({{"interrupted", true}});
    } else {
      print_line("stopped: no index was written");
    }
    return exit_code_of_interrupt();
  }
  ordered_json index{{"__kind__", "wids-shard-index-v1"}, {"wids_version", 1}};
  index["shardlist"] = ordered_json::array();
  shard_index offsets;
  for (indexed_shard& s : *shards) {
    index["shardlist"].push_back(std::move(s.entry));
    offsets.shards.push_back(std::move(s.offsets));
  }
  if (!name.empty()) index["name"] = name;
  if (a.base) index["base"] = without_secrets(*a.base);
  if (!a.info_file.empty()) index["info"] = info;
  index_file.append(python_json(index));
  if (sidecar_file) sidecar_file->append(offsets_text(offsets));
  if (commit_index(index_file, a.output, sidecar_file ? &*sidecar_file : nullptr)) {
    to_stderr("removed {}, which belonged to the previous index; --offsets writes a new one\n",
              printable(sidecar));
  }
  tell_of_created(a, sidecar_file ? sidecar : "", offsets);
  if (has_left_out) {
    to_stderr("removed from the URLs: users, passwords, and unknown parameters\n");
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

// The items of a list of the index; empty if the member is missing.
std::span<const json_tree> items_in(const json_tree& raw, const char* member) {
  const json_tree* const found = raw.find(member);
  const auto* const items = found == nullptr ? nullptr : found->as<json_tree::list>();
  return items == nullptr ? std::span<const json_tree>() : *items;
}

int info(const environment& e, const std::vector<std::string>& files, bool table, bool json) {
  engine eng(engine_options::from(e.variables));
  auto said = nlohmann::json::array();
  if (table && !json) fmt::print("file\tname\tnbytes\tnsamples\tbase\tlast\tdatasets\n");
  for (const std::string& file : files) {
    const shard_index index = read_index(eng, file);
    const auto raw = json_tree::read(read_text(eng, file), {.most = room_for_index(eng)}).value();
    const auto shown_url = [&](const std::string& url) {
      return json ? redacted(url) : printable(redacted(url));
    };
    const std::string base = shown_url(std::string(raw.text_of("base")));
    const auto list = items_in(raw, "shardlist");
    const auto url_of = [&](const json_tree& entry) {
      std::string url(entry.text_of("url"));
      if (has_scheme(url) || !has_scheme(index.base)) return url;
      const auto query = url.find_first_of("?#");  // behind a URL, where it may hold secrets
      return query == url.npos ? url : url.substr(0, query) + "?...";
    };
    const std::string first =
        shown_url(list.empty() ? index.shards.front().url : url_of(list.front()));
    const std::string last =
        shown_url(list.empty() ? index.shards.back().url : url_of(list.back()));
    const auto datasets = items_in(raw, "datasets").size();
    const std::string shown = shown_url(file);
    if (json) {
      said.push_back({{"file", shown},
                      {"name", index.name},
                      {"info", index.info},
                      {"base", base},
                      {"shards", index.shards.size()},
                      {"samples", index.samples()},
                      {"bytes", index.bytes()},
                      {"first", first},
                      {"last", last},
                      {"datasets", datasets},
                      {"offsets", index.has_offsets()}});
      continue;
    }
    if (table) {
      fmt::print("{}\t{}\t{}\t{}\t{}\t{}\t{}\n", shown, or_none(printable(index.name)),
                 index.bytes(), index.samples(), or_none(base), last, datasets);
      continue;
    }
    const auto shards = static_cast<std::int64_t>(index.shards.size());
    fmt::print("filename: {}\n", shown);
    fmt::print("            name: {}\n", or_none(printable(index.name)));
    fmt::print("            info: {}\n", or_none(printable_lines(index.info)));
    fmt::print("            base: {} (assumed: {})\n", or_none(base),
               std::filesystem::path(shown).parent_path().string());
    fmt::print("      total size: {}\n", with_suffix(static_cast<double>(index.bytes())));
    fmt::print("   total samples: {}\n", with_suffix(static_cast<double>(index.samples())));
    fmt::print(" avg sample size: {}\n", with_suffix(whole_part(index.bytes(), index.samples())));
    fmt::print("  avg shard size: {}\n", with_suffix(whole_part(index.bytes(), shards)));
    fmt::print("     first shard: {}\n", first);
    fmt::print("      last shard: {}\n", last);
    if (datasets > 0) fmt::print("        datasets: {}\n", datasets);
    fmt::print("         offsets: {}\n\n", index.has_offsets() ? "of every sample" : "none");
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

  auto changed = std::make_shared<index_update_arguments>();
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
    if (updating->parsed()) return update_index(e, *changed, *json);
    if (informing->parsed()) return info(e, *files, *table, *json);
    if (showing->parsed()) return show_index_sample(e, *one);
    if (direct->shards.specs.empty()) {
      throw failure(error(errc::usage, "no shards").hint("see `millrace index --help`"));
    }
    return create(e, *direct);
  };
}

}  // namespace millrace::cli
