#include "train/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* partial = ".partial-";
constexpr const char* step_prefix = "step-";
constexpr std::size_t kept = 2;

[[noreturn]] void fail_io(const fs::path& file, const char* what) {
  throw failure(error(errc::io_failed, what)
                    .at(file.string())
                    .cause(errno)
                    .hint("check that the folder may be written to and has room"));
}

void sync_to_disk(const fs::path& file) {
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail_io(file, "cannot open what was written");
  const int code = fsync(fd);
  close(fd);
  if (code != 0) fail_io(file, "cannot write");
}

void write_file(const fs::path& file, const char* data, std::size_t size) {
  std::ofstream out(file, std::ios::binary);
  out.write(data, static_cast<std::streamsize>(size));
  out.close();
  if (!out) fail_io(file, "cannot write");
  sync_to_disk(file);
}

std::string read_file(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    throw failure(error(errc::not_found, "cannot read").at(file.string()).cause(errno).hint(
        "name a checkpoint's folder, or use --resume auto"));
  }
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string data_name(int rank) { return fmt::format("data-rank{}.json", rank); }

// Step folders, oldest first.
std::vector<fs::path> checkpoints_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    if (entry.path().filename().string().starts_with(step_prefix)) found.push_back(entry.path());
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace

tensor_dict load_tensors(const std::string& file) {
  const std::string raw = read_file(file);
  try {
    const auto loaded = torch::pickle_load(std::vector<char>(raw.begin(), raw.end()));
    tensor_dict out;
    for (const auto& entry : loaded.toGenericDict()) {
      out.emplace(entry.key().toStringRef(), entry.value().toTensor());
    }
    return out;
  } catch (const c10::Error& e) {
    throw failure(error(errc::bad_state, fmt::format("not a dict of tensors ({})",
                                                     std::string(e.what_without_backtrace())
                                                         .substr(0, 120)))
                      .at(file)
                      .hint("write it with torch.save(dict(model.state_dict()), FILE)"));
  }
}

void save_tensors(const std::string& file, const tensor_dict& tensors) {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::TensorType::get());
  for (const auto& [name, tensor] : tensors) dict.insert(name, tensor.cpu());
  const auto raw = torch::pickle_save(dict);
  write_file(file, raw.data(), raw.size());
}

void save_checkpoint(const std::string& folder, const checkpoint& c, process_group& group) {
  const std::string name = fmt::format("{}{:010}", step_prefix, c.step);
  const fs::path draft = fs::path(folder) / (partial + name);
  const bool first = group.place().rank == 0;
  std::error_code failed;
  fs::create_directories(draft, failed);
  if (failed) {
    errno = failed.value();
    fail_io(draft, "cannot make the checkpoint's folder");
  }
  const std::string data = c.data.to_json();
  write_file(draft / data_name(group.place().rank), data.data(), data.size());
  if (first) {
    save_tensors(draft / "model.pt", c.model);
    save_tensors(draft / "optimizer.pt", c.momentum);
    const std::string meta = nlohmann::json{{"step", c.step},
                                            {"epoch", c.epoch},
                                            {"batch_in_epoch", c.batch_in_epoch},
                                            {"epoch_batches", c.epoch_batches},
                                            {"samples", c.samples},
                                            {"world_size", c.world_size}}
                                 .dump(2);
    write_file(draft / "train.json", meta.data(), meta.size());
  }
  group.barrier();  // all parts are written
  if (first) {
    const fs::path whole = fs::path(folder) / name;
    fs::remove_all(whole, failed);
    fs::rename(draft, whole, failed);
    if (failed) fail_io(whole, "cannot give the checkpoint its name");
    sync_to_disk(folder);
    auto all = checkpoints_in(folder);
    for (std::size_t i = 0; i + kept < all.size(); ++i) fs::remove_all(all[i], failed);
  }
  group.barrier();  // it has its name
}

std::optional<std::string> newest_checkpoint(const std::string& folder) {
  const auto all = checkpoints_in(folder);
  if (all.empty()) return std::nullopt;
  return all.back().string();
}

checkpoint load_checkpoint(const std::string& path, const job_place& place) {
  const fs::path folder(path);
  const auto meta = nlohmann::json::parse(read_file(folder / "train.json"), nullptr, false);
  if (!meta.is_object()) {
    throw failure(error(errc::bad_state, "the checkpoint is damaged").at(path).hint(
        "resume from an older one"));
  }
  checkpoint c;
  c.step = meta.value("step", std::int64_t{0});
  c.epoch = meta.value("epoch", std::int64_t{0});
  c.batch_in_epoch = meta.value("batch_in_epoch", std::int64_t{0});
  c.epoch_batches = meta.value("epoch_batches", std::int64_t{0});
  c.samples = meta.value("samples", std::int64_t{0});
  c.world_size = meta.value("world_size", 1);
  if (c.world_size != place.world_size) {
    throw failure(error(errc::bad_state, fmt::format("the checkpoint was written by {} ranks, and "
                                                     "{} would resume it",
                                                     c.world_size, place.world_size))
                      .at(path)
                      .hint("start as many ranks as before"));
  }
  c.model = load_tensors(folder / "model.pt");
  c.momentum = load_tensors(folder / "optimizer.pt");
  auto data = state::from_json(read_file(folder / data_name(place.rank)));
  if (!data) throw failure(data.error().at(path));
  c.data = std::move(*data);
  return c;
}

}  // namespace millrace
