#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "pipeline/tools/names.h"
#include "pipeline/tools/scan.h"
#include "pipeline/wids/indexed_dataset.h"
#include "pipeline/wids/shard_index.h"

namespace millrace::cli {
namespace {

using nlohmann::ordered_json;

// As Python's json.dump(indent=2) writes it.
std::string python_json(const ordered_json& value) {
  return value.dump(2, ' ', true, ordered_json::error_handler_t::replace);
}

void write_file(const std::string& path, std::string_view text) {
  const std::string temporary = path + ".temp";
  {
    std::ofstream out(temporary, std::ios::binary);
    out << text;
    if (!out.flush()) {
      throw failure(error(errc::io_failed, "cannot write the file").at(path).cause(errno));
    }
  }
  std::filesystem::rename(temporary, path);
}

struct create_arguments {
  shard_arguments shards;
  std::string output = "shardindex.json";
  std::optional<std::string> name;
  std::string info_file;
  std::optional<std::string> base;
  bool offsets = false;
  bool no_md5 = false;

  void add_to(CLI::App& app, bool required) {
    app.add_option("SHARD", shards.specs, "shards: paths, URLs, brace ranges, '::' lists, @FILE")
        ->required(required);
    app.add_flag("--allow-pipe", shards.allow_pipe, "pipe: URLs may run commands");
    app.add_option("-o,--output", output, "the index to write")->capture_default_str();
    app.add_option("-n,--name", name, "of the dataset (from the first shard's name)");
    app.add_option("-i,--info", info_file, "a file with a description");
    app.add_option("-b,--base", base, "the base that the index is to name");
    app.add_flag("--offsets", offsets, "write a sidecar with the offset of each sample as well");
    app.add_flag("--no-md5", no_md5, "no digests: large files are jumped over, not read");
  }
};

std::string read_local(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw failure(error(errc::not_found, "cannot read the file").at(path).cause(errno));
  return {std::istreambuf_iterator<char>(in), {}};
}

// One entry of the shard list.
ordered_json entry_of(const shard_facts& f, bool md5) {
  ordered_json entry{{"url", f.url}};
  if (md5) entry["md5sum"] = f.md5;
  entry["nsamples"] = f.samples.size();
  if (md5) entry["filesize"] = f.bytes;
  return entry;
}

std::vector<std::uint32_t> blocks_of(const shard_facts& f) {
  std::vector<std::uint32_t> out;
  if (f.is_compressed || f.samples.empty()) return out;
  for (const sample_place& s : f.samples) out.push_back(static_cast<std::uint32_t>(s.begin / 512));
  out.push_back(static_cast<std::uint32_t>(f.samples.back().end / 512));
  return out;
}

int create(const environment& e, const create_arguments& a) {
  const auto urls = a.shards.urls(e);
  std::string name = a.name.value_or("");
  if (!a.name) {
    name = dataset_name(a.shards.specs.front());
    fmt::print("setting name to {}\n", name);
  }
  struct shard {
    ordered_json entry;
    shard_index::shard offsets;
  };
  std::vector<shard> shards;
  engine eng(a.shards.engine(e));
  for (const shard_facts& f : eng.run(scan(urls, {.md5 = !a.no_md5}))) {
    if (!f.problems.empty()) {
      throw failure(error(f.problems.front())
                        .hint("`millrace verify` lists all that is wrong with the shards"));
    }
    fmt::print("{}\n", f.url);
    std::fflush(stdout);
    shards.push_back({entry_of(f, !a.no_md5),
                      {.url = f.url,
                       .samples = static_cast<std::int64_t>(f.samples.size()),
                       .bytes = static_cast<std::int64_t>(f.bytes),
                       .md5 = f.md5,
                       .dataset = "",
                       .blocks = blocks_of(f)}});
  }
  std::ranges::sort(shards, {}, [](const shard& s) -> const std::string& { return s.offsets.url; });
  ordered_json index{{"__kind__", "wids-shard-index-v1"}, {"wids_version", 1}};
  index["shardlist"] = ordered_json::array();
  shard_index offsets;
  for (shard& s : shards) {
    index["shardlist"].push_back(std::move(s.entry));
    offsets.shards.push_back(std::move(s.offsets));
  }
  if (!name.empty()) index["name"] = name;
  if (a.base) index["base"] = *a.base;
  if (!a.info_file.empty()) index["info"] = read_local(a.info_file);
  // The sidecar first: an index never stands beside the offsets of another one.
  if (a.offsets) write_file(sidecar_of(a.output), offsets_text(offsets));
  if (!a.offsets) std::filesystem::remove(sidecar_of(a.output));
  write_file(a.output, python_json(index));
  return 0;
}

struct update_arguments {
  std::string file;
  std::string name;
  std::string info;
  std::string base;
  std::string folder;
  bool no_folder = false;
  bool rebase = false;
  bool keep = false;
  bool no_keep = false;
};

std::string file_of(const std::string& url) {
  return url.substr(url.rfind('/') + 1);
}

// The folder of a URL; a local path's is absolute and a file: URL.
std::string whole_folder_of(const std::string& url) {
  if (url.find("://") != url.npos) return url.substr(0, url.rfind('/'));
  return "file://" + std::filesystem::absolute(url).lexically_normal().parent_path().string();
}

void move_shards(ordered_json& index, const update_arguments& a) {
  auto list = index["shardlist"];
  if (a.rebase) {
    std::string base;
    for (const auto& shard : list) {
      const std::string found = whole_folder_of(shard.value("url", ""));
      if (!base.empty() && found != base) {
        throw failure(error(
            errc::usage, fmt::format("the shards lie in several folders, {} and {}", base, found)));
      }
      base = found;
    }
    fmt::print("rebasing to {}\n", base);
    index["base"] = base;
  }
  for (auto& shard : list) {
    const std::string file = file_of(shard.value("url", ""));
    const bool bare = a.no_folder || a.folder.empty();
    shard["url"] = bare ? file : a.folder + (a.folder.ends_with('/') ? "" : "/") + file;
  }
  std::sort(list.begin(), list.end(),
            [](const auto& a, const auto& b) { return a.value("url", "") < b.value("url", ""); });
  index["shardlist"] = std::move(list);
}

int update(const update_arguments& a) {
  auto index = ordered_json::parse(read_local(a.file), nullptr, false);
  if (!index.is_object() || !index.contains("shardlist")) {
    throw failure(error(errc::bad_index, "this is no index of shards").at(a.file));
  }
  if (!a.name.empty()) index["name"] = a.name;
  if (a.keep || a.no_keep) index["keep"] = a.keep;
  if (!a.info.empty()) index["info"] = a.info;
  if (!a.base.empty()) index["base"] = a.base;
  if (!a.folder.empty() || a.no_folder || a.rebase) move_shards(index, a);
  if (!index.contains("name")) {
    index["name"] = std::filesystem::path(a.file).stem().string();
  }
  std::filesystem::copy_file(a.file, a.file + ".bak",
                             std::filesystem::copy_options::overwrite_existing);
  write_file(a.file, python_json(index));
  return 0;
}

// As Python's int(a / b) rounds it.
double whole_part(std::int64_t a, std::int64_t b) {
  return b == 0 ? 0 : std::floor(static_cast<double>(a) / static_cast<double>(b));
}

std::string or_none(const std::string& text) {
  return text.empty() ? "None" : text;
}

int info(const environment& e, const std::vector<std::string>& files, bool table) {
  engine eng(engine_options::from(e.variables));
  if (table) fmt::print("file\tname\tnbytes\tnsamples\tbase\tlast\tdatasets\n");
  for (const std::string& file : files) {
    const shard_index index = read_index(eng, file);
    const auto raw = ordered_json::parse(read_text(eng, file), nullptr, false);
    const std::string base = raw.value("base", "");
    const auto& list = raw.contains("shardlist") ? raw["shardlist"] : ordered_json::array();
    const std::string first =
        list.empty() ? index.shards.front().url : list.front().value("url", "");
    const std::string last = list.empty() ? index.shards.back().url : list.back().value("url", "");
    const auto datasets = raw.value("datasets", ordered_json::array()).size();
    if (table) {
      fmt::print("{}\t{}\t{}\t{}\t{}\t{}\t{}\n", file, or_none(index.name), index.bytes(),
                 index.samples(), or_none(base), last, datasets);
      continue;
    }
    const auto shards = static_cast<std::int64_t>(index.shards.size());
    fmt::print("filename: {}\n", file);
    fmt::print("            name: {}\n", or_none(index.name));
    fmt::print("            info: {}\n", or_none(index.info));
    fmt::print("            base: {} (assumed: {})\n", or_none(base),
               std::filesystem::path(file).parent_path().string());
    fmt::print("      total size: {}\n", with_suffix(static_cast<double>(index.bytes())));
    fmt::print("   total samples: {}\n", with_suffix(static_cast<double>(index.samples())));
    fmt::print(" avg sample size: {}\n", with_suffix(whole_part(index.bytes(), index.samples())));
    fmt::print("  avg shard size: {}\n", with_suffix(whole_part(index.bytes(), shards)));
    fmt::print("     first shard: {}\n", first);
    fmt::print("      last shard: {}\n", last);
    if (datasets > 0) fmt::print("        datasets: {}\n", datasets);
    fmt::print("         offsets: {}\n\n", index.has_offsets() ? "of every sample" : "none");
  }
  return 0;
}

// What a field shows of itself: text as it is, else its size.
std::string shown(std::string_view content, std::size_t width) {
  const bool is_text = std::ranges::all_of(
      content, [](char c) { return (c >= ' ' && c != 0x7f) || c == '\n' || c == '\t'; });
  if (!is_text) return fmt::format("{} bytes", content.size());
  return ordered_json(std::string(content.substr(0, width)))
      .dump(-1, ' ', true, ordered_json::error_handler_t::replace)
      .substr(0, width);
}

struct sample_arguments {
  std::string file;
  std::int64_t index = 0;
  std::string field;
  bool raw = false;
  std::size_t width = 250;
};

int show_sample(const environment& e, const sample_arguments& a) {
  engine eng(engine_options::from(e.variables));
  indexed_dataset data(eng, read_index(eng, a.file));
  fmt::print(stderr, "dataset size: {}\n", data.size());
  const sample s = data.get(a.index);
  if (!a.field.empty()) {
    const field* f = s.find(a.field.starts_with('.') ? a.field.substr(1) : a.field);
    if (f == nullptr) {
      throw failure(error(errc::missing_field, fmt::format("no field '{}'", a.field)).key(s.key));
    }
    const auto written = std::fwrite(f->data.data(), 1, f->data.size(), stdout);
    return written == f->data.size() ? 0 : 1;
  }
  std::vector<std::pair<std::string, std::string>> lines;
  lines.reserve(s.fields.size() + 4);
  for (const field& f : s.fields)
    lines.emplace_back("." + f.extension, shown(f.data.text(), a.width));
  lines.emplace_back("__index__", std::to_string(a.index));
  lines.emplace_back("__key__", "'" + s.key + "'");
  lines.emplace_back("__shard__", "'" + redacted(*s.url) + "'");
  lines.emplace_back("__shardindex__", std::to_string(data.find(a.index).sample));
  std::ranges::sort(lines);
  std::size_t longest = 0;
  for (const auto& [name, text] : lines) longest = std::max(longest, name.size());
  for (const auto& [name, text] : lines) {
    fmt::print("{:{}} {}\n", name, longest,
               text.substr(0, std::max(a.width, longest + 2) - longest - 1));
  }
  return 0;
}

}  // namespace

action add_index(CLI::App& app) {
  CLI::App* index = app.add_subcommand(
      "index", "an index of shards (wids v1 JSON): create, update, info, sample");
  index->require_subcommand(0, 1);
  auto direct = std::make_shared<create_arguments>();
  direct->add_to(*index, false);
  auto made = std::make_shared<create_arguments>();
  CLI::App* creating = index->add_subcommand("create", "counts, sizes and digests of shards");
  made->add_to(*creating, true);

  auto changed = std::make_shared<update_arguments>();
  CLI::App* updating = index->add_subcommand("update", "change what an index says");
  updating->add_option("FILE", changed->file, "the index")->required();
  updating->add_option("-n,--name", changed->name, "of the dataset");
  updating->add_option("-i,--info", changed->info, "its description");
  updating->add_option("-b,--base", changed->base, "the base that shards stand behind");
  updating->add_option("-d,--dir", changed->folder, "the folder of every shard");
  updating->add_flag("-D,--nodir", changed->no_folder, "shards without folders");
  updating->add_flag("-B,--rebase", changed->rebase, "make the shards' folder the base");
  updating->add_flag("-k,--keep", changed->keep, "set the keep flag");
  updating->add_flag("-K,--nokeep", changed->no_keep, "clear the keep flag");

  auto files = std::make_shared<std::vector<std::string>>();
  auto table = std::make_shared<bool>();
  CLI::App* informing = index->add_subcommand("info", "what an index says");
  informing->add_option("FILE", *files, "indices")->required();
  informing->add_flag("-t,--table", *table, "a table with a line for each");

  auto one = std::make_shared<sample_arguments>();
  CLI::App* showing = index->add_subcommand("sample", "one sample, by its number");
  showing->add_option("FILE", one->file, "the index")->required();
  showing->add_option("INDEX", one->index, "from 0")->required();
  showing->add_option("-c,--cat", one->field, "write the bytes of this field");
  showing->add_flag("-r,--raw,-p,--python", one->raw, "as it is: fields are never decoded here");
  showing->add_option("-w,--width", one->width, "longest line")->capture_default_str();

  return [=](const environment& e) {
    if (creating->parsed()) return create(e, *made);
    if (updating->parsed()) return update(*changed);
    if (informing->parsed()) return info(e, *files, *table);
    if (showing->parsed()) return show_sample(e, *one);
    if (direct->shards.specs.empty()) {
      throw failure(error(errc::usage, "no shards").hint("see `millrace index --help`"));
    }
    return create(e, *direct);
  };
}

}  // namespace millrace::cli
