#include "train/checkpoints/checkpoint_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

#include "engine/base/json_tree.h"
#include "engine/base/nesting.h"
#include "engine/base/printable.h"
#include "engine/base/words.h"
#include "engine/files/file_system.h"
#include "engine/files/folders.h"
#include "engine/files/written_file.h"
#include "io/hashes.h"
#include "pipeline/state/merged.h"
#include "pipeline/state/records.h"
#include "train/checkpoints/checkpoint_names.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view data_begin = "data-rank";
constexpr std::string_view data_end = ".json";
constexpr const char* checksum_key = "checksum";

std::string data_name(int rank) {
  return fmt::format("{}{}{}", data_begin, rank, data_end);
}

bool is_data_name(std::string_view name) {
  if (!name.starts_with(data_begin) || !name.ends_with(data_end)) return false;
  name.remove_prefix(data_begin.size());
  name.remove_suffix(std::min(name.size(), data_end.size()));
  return !name.empty() && name.find_first_not_of("0123456789") == name.npos;
}

[[noreturn]] void damaged(const std::string& path, const std::string& file,
                          const std::string& what) {
  throw failure(error(errc::integrity, what)
                    .at((fs::path(path) / file).string())
                    .hint("resume from an older checkpoint: --resume auto takes the newest whole "
                          "one"));
}

json_tree number(std::int64_t n) {
  return json_tree(json_tree::anything(n));
}
json_tree text(std::string of) {
  return json_tree(json_tree::anything(std::move(of)));
}

json_tree text_list(const std::vector<std::string>& names) {
  json_tree::list out;
  for (const std::string& name : names) out.push_back(text(name));
  return json_tree(std::move(out));
}
std::vector<std::string> text_list_in(const json_tree& of) {
  std::vector<std::string> names;
  const auto* const list = of.as<json_tree::list>();
  if (list == nullptr) return names;
  for (const json_tree& one : *list) {
    if (const auto* const name = one.as<std::string>()) names.push_back(*name);
  }
  return names;
}

// The content of train.json, after verifying its checksum.
json_tree meta_in(const checkpoint_files& files, const std::string& path) {
  const auto text = files.find(meta_name);
  if (text == files.end()) damaged(path, meta_name, "the checkpoint has no such file");
  if (const auto why = why_not_parsed(text->second)) {
    damaged(path, meta_name, "the checkpoint is damaged: " + *why);
  }
  const auto parsed = json_tree::parse(text->second);
  const auto* const all = parsed ? parsed->as<json_tree::object>() : nullptr;
  if (all == nullptr) damaged(path, meta_name, "the checkpoint is damaged: not JSON");
  const std::string_view said = parsed->text_of(checksum_key);
  if (said.empty()) {
    damaged(path, meta_name, "the checkpoint is damaged, or of a millrace before 0.2");
  }
  json_tree::object rest = *all;
  rest.erase(checksum_key);
  json_tree meta{std::move(rest)};
  if (said != crc_text(meta.dump())) {
    damaged(path, meta_name, "the checkpoint is damaged: its checksum differs");
  }
  return meta;
}

// A member of train.json.
template <class T>
const T& member(const json_tree& meta, const char* name, const std::string& path) {
  const json_tree* const found = meta.find(name);
  const T* const value = found != nullptr ? found->as<T>() : nullptr;
  if (value == nullptr) {
    damaged(path, meta_name, fmt::format("the checkpoint does not say its {}", name));
  }
  return *value;
}

// The mode of the file of this name; null: there is none. If it cannot be examined, the error says
// that, not that it is missing.
std::optional<mode_t> mode_of(const std::string& path) {
  struct stat s{};
  const int code = host_files().stat(path, s);
  if (code == 0) return s.st_mode;
  if (code == -ENOENT || code == -ENOTDIR) return std::nullopt;
  throw failure(
      error(kind_of(-code), "cannot examine a part of the checkpoint").at(path).cause(-code));
}

// Names come from a file that may be a stranger's, and are written again below other folders.
void check_file_name(const std::string& name, const std::string& path) {
  const bool is_plain =
      !name.empty() && !name.starts_with('.') && name.find_first_of({'/', '\0'}) == name.npos;
  if (!is_plain) {
    damaged(
        path, meta_name,
        fmt::format("the checkpoint lists '{}', which is not a valid file name", printable(name)));
  }
}

// Unreadable files count as no validation, which is then repeated.
std::string validated_in(const checkpoint_files& files) {
  const auto file = files.find(validation_name);
  const auto parsed = file != files.end() ? json_tree::parse(file->second) : json_tree::parse("");
  const json_tree* const of = parsed ? parsed->find(validated_key) : nullptr;
  const auto* const text = of != nullptr ? of->as<std::string>() : nullptr;
  return text != nullptr ? *text : "";
}

}  // namespace

checkpoint_files files_of(const checkpoint_record& c, checkpoint_files weights,
                          const std::vector<std::string>& data) {
  checkpoint_files files = std::move(weights);
  for (std::size_t r = 0; r < data.size(); ++r) files[data_name(static_cast<int>(r))] = data[r];
  if (!c.shards.empty()) files[shards_name] = fmt::format("{}\n", fmt::join(c.shards, "\n"));
  json_tree::object listed;
  for (const auto& [name, content] : files) {
    listed[name] = json_tree(json_tree::object{{"bytes", number(std::ssize(content))},
                                               {"crc32c", text(crc_text(content))}});
  }
  json_tree::object said;
  for (const auto& [option, value] : c.said) said[option] = text(printable(value));
  json_tree::object meta{{"step", number(c.step)},
                         {"epoch", number(c.epoch)},
                         {"batch_in_epoch", number(c.batch_in_epoch)},
                         {"epoch_batches", number(c.epoch_batches)},
                         {"samples", number(c.samples)},
                         {"batch_size", number(c.batch_size)},
                         {"world_size", number(c.world_size)},
                         {"run", text(c.run)},
                         {"arguments", json_tree(std::move(said))},
                         {"files", json_tree(std::move(listed))}};
  if (!c.classes.empty()) meta["classes"] = text_list(c.classes);
  meta[checksum_key] = text(crc_text(json_tree(meta).dump()));
  files[meta_name] = json_tree(std::move(meta)).dump();
  return files;
}

std::vector<std::string> own_files(const std::vector<std::string>& names, const std::string& meta) {
  const auto parsed = json_tree::parse(meta);
  const json_tree* const listed = parsed ? parsed->find("files") : nullptr;
  const auto is_own = [&](const std::string& name) {
    const bool is_validation = name == validation_name ||
                               (name.starts_with(validation_name) && is_partial_file_name(name));
    return name == meta_name || name == model_name || name == optimizer_name || name == ema_name ||
           name == shards_name || is_validation || is_data_name(name) ||
           (listed != nullptr && listed->find(name) != nullptr);
  };
  std::vector<std::string> own;
  std::ranges::copy_if(names, std::back_inserter(own), is_own);
  return own;
}

bool is_checkpoint(const std::string& folder) {
  return is_there(fs::path(folder) / meta_name) && is_there(fs::path(folder) / model_name);
}

checkpoint_files read_checkpoint(const std::string& path) {
  const auto kind = mode_of(path);
  if (!kind || !S_ISDIR(*kind)) {
    throw failure(error(errc::not_found, "no such checkpoint")
                      .at(path)
                      .hint("set --resume to auto or a checkpoint's folder, DIR/step-NNNNNNNNNN"));
  }
  const bool has_meta = mode_of(fs::path(path) / meta_name).has_value();
  if (const auto below = checkpoints_in(path); !has_meta && !below.empty()) {
    throw failure(error(errc::usage, "this is a folder of checkpoints, not one of them")
                      .at(path)
                      .hint(fmt::format("its newest is {}: give that one", below.back())));
  }
  return read_checkpoint_by(
      [&](const std::string& name, std::size_t most) -> std::optional<std::string> {
        const std::string file = fs::path(path) / name;
        if (!S_ISREG(mode_of(file).value_or(0))) return std::nullopt;
        return read_whole_file(file, most).value();
      },
      path);
}

checkpoint_files read_checkpoint_by(const checkpoint_reader& read, const std::string& path) {
  const auto needed = [&](const std::string& name, std::size_t most) {
    auto content = read(name, most);
    if (!content) damaged(path, name, "the checkpoint lacks a file");
    return std::move(*content);
  };
  checkpoint_files files{{meta_name, needed(meta_name, most_of_a_list)}};
  const json_tree meta = meta_in(files, path);
  for (const auto& [name, about] : member<json_tree::object>(meta, "files", path)) {
    check_file_name(name, path);
    const auto bytes = member<std::int64_t>(about, "bytes", path);
    const auto wrong_size = [&, listed = name](const std::string& found) {
      damaged(path, listed,
              fmt::format("the checkpoint is damaged: {} bytes instead of {}", found, bytes));
    };
    if (bytes < 0) wrong_size("no number of");
    std::string& content = files[name];
    try {
      content = needed(name, static_cast<std::size_t>(bytes));
    } catch (const failure& f) {
      if (f.kind() != errc::too_large) throw;
      wrong_size("more");
    }
    if (std::ssize(content) != bytes) wrong_size(std::to_string(content.size()));
    if (crc_text(content) != about.text_of("crc32c")) {
      damaged(path, name, "the checkpoint is damaged: a file's checksum differs");
    }
  }
  if (auto validation = read(validation_name, most_of_a_list))
    files[validation_name] = std::move(*validation);
  return files;
}

const std::string& file_in(const checkpoint_files& files, const std::string& name,
                           const std::string& path) {
  const auto found = files.find(name);
  if (found == files.end()) damaged(path, name, "the checkpoint lacks a file");
  return found->second;
}

std::int64_t lanes_of(const state& saved) {
  const auto plan = plan_record::in(saved);
  return plan ? plan->lanes : 0;
}

checkpoint_record record_as_saved(const checkpoint_files& files, const std::string& path) {
  const json_tree meta = meta_in(files, path);
  const auto number_of = [&](const char* name, std::int64_t most, std::int64_t least = 0) {
    const auto value = member<std::int64_t>(meta, name, path);
    if (value >= least && value <= most) return value;
    damaged(path, meta_name, fmt::format("the checkpoint is damaged: its {} is {}", name, value));
  };
  constexpr std::int64_t most_ranks = 65'536;
  constexpr std::int64_t most_images = 65'536;  // of a rank's batch
  checkpoint_record c;
  c.step = number_of("step", most_counted);
  c.epoch = number_of("epoch", most_counted);
  c.batch_in_epoch = number_of("batch_in_epoch", most_counted);
  c.epoch_batches = number_of("epoch_batches", most_counted);
  c.samples = number_of("samples", most_counted);
  c.batch_size = static_cast<int>(number_of("batch_size", most_images));
  c.world_size = static_cast<int>(number_of("world_size", most_ranks, 1));
  c.run = member<std::string>(meta, "run", path);
  for (const auto& [option, value] : member<json_tree::object>(meta, "arguments", path)) {
    if (const auto* const said = value.as<std::string>()) c.said[option] = *said;
  }
  if (const json_tree* const list = meta.find("classes")) c.classes = text_list_in(*list);
  if (const auto names = files.find(shards_name); names != files.end()) {
    c.shards = split(names->second, '\n');
  }
  c.validated = validated_in(files);
  return c;
}

state state_in(const checkpoint_files& files, const std::string& path, int rank,
               std::size_t state_bytes) {
  auto data = state::from_json(file_in(files, data_name(rank), path), state_bytes);
  if (data) return std::move(*data);
  const std::string file = fs::path(path) / data_name(rank);
  if (data.error().kind() != errc::too_large) throw failure(data.error().at(file));
  throw failure(error(errc::no_memory, "the saved state: " + data.error().what())
                    .at(file)
                    .hint("raise MILLRACE_MEMORY, or give the --shuffle, --batch-size and "
                          "--prefetch of the run that saved it"));
}

checkpoint_record record_in(const checkpoint_files& files, const std::string& path, int rank,
                            int world_size, std::int64_t lanes, int batch_size,
                            std::size_t state_bytes) {
  checkpoint_record c = record_as_saved(files, path);
  const bool is_own = c.world_size == world_size;
  if (is_own) c.data = state_in(files, path, rank, state_bytes);
  // Each rank takes a part of what all ranks had left.
  const std::int64_t lanes_then = lanes_of(c.data);
  if (!is_own || (world_size > 1 && lanes_then != 0 && lanes_then != lanes)) {
    std::vector<state> of_ranks;
    of_ranks.reserve(static_cast<std::size_t>(c.world_size));
    for (int r = 0; r < c.world_size; ++r) {
      of_ranks.push_back(state_in(files, path, r, state_bytes));
    }
    c.data = merged(of_ranks);
  }
  const std::int64_t then =
      std::int64_t{c.world_size} * (c.batch_size == 0 ? batch_size : c.batch_size);
  const std::int64_t now = std::int64_t{world_size} * batch_size;
  // The products below.
  if (std::max({c.epoch_batches, c.batch_in_epoch, c.samples}) >
      std::numeric_limits<std::int64_t>::max() / then - 1) {
    damaged(path, meta_name, "the checkpoint is damaged: no epoch has as many images as it says");
  }
  // Samples that did not fill a batch before may fill one now.
  if (c.epoch_batches > 0) c.epoch_batches_most = ((c.epoch_batches + 1) * then - 1) / now;
  // An epoch that has begun stays begun.
  if (c.batch_in_epoch > 0) {
    c.batch_in_epoch = std::max<std::int64_t>(1, c.batch_in_epoch * then / now);
  }
  c.epoch_batches = c.epoch_batches * then / now;
  c.samples = c.samples * c.world_size / world_size;
  return c;
}

}  // namespace millrace
