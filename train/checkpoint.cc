#include "train/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "pipeline/redeal.h"
#include "train/files.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* partial = ".partial-";
constexpr const char* step_prefix = "step-";
constexpr std::size_t kept = 2;

std::string data_name(int rank) {
  return fmt::format("data-rank{}.json", rank);
}

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

void save_checkpoint(const std::string& folder, const checkpoint& c, process_group& group) {
  const std::string name = fmt::format("{}{:010}", step_prefix, c.step);
  const fs::path draft = fs::path(folder) / (partial + name);
  const bool first = group.place().rank == 0;
  std::error_code failed;
  fs::create_directories(draft, failed);
  if (failed) {
    errno = failed.value();
    throw_io_failed(draft, "cannot make the checkpoint's folder");
  }
  write_file(draft / data_name(group.place().rank), c.data.to_json());
  if (first) {
    save_tensors(draft / "model.safetensors", c.model);
    save_tensors(draft / "optimizer.safetensors", c.momentum);
    const std::string meta = nlohmann::json{
        {"step", c.step},
        {"epoch", c.epoch},
        {"batch_in_epoch", c.batch_in_epoch},
        {"epoch_batches", c.epoch_batches},
        {"samples", c.samples},
        {"world_size",
         c.world_size}}.dump(2);
    write_file(draft / "train.json", meta);
  }
  group.barrier();  // all parts are written
  if (first) {
    const fs::path whole = fs::path(folder) / name;
    fs::remove_all(whole, failed);
    fs::rename(draft, whole, failed);
    if (failed) throw_io_failed(whole, "cannot give the checkpoint its name");
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
    throw failure(error(errc::bad_state, "the checkpoint is damaged")
                      .at(path)
                      .hint("resume from an older one"));
  }
  checkpoint c;
  c.step = meta.value("step", std::int64_t{0});
  c.epoch = meta.value("epoch", std::int64_t{0});
  c.batch_in_epoch = meta.value("batch_in_epoch", std::int64_t{0});
  c.epoch_batches = meta.value("epoch_batches", std::int64_t{0});
  c.samples = meta.value("samples", std::int64_t{0});
  c.world_size = meta.value("world_size", 1);
  c.model = load_tensors(folder / "model.safetensors");
  c.momentum = load_tensors(folder / "optimizer.safetensors");
  const auto state_of = [&](int rank) {
    auto data = state::from_json(read_file(folder / data_name(rank)));
    if (!data) throw failure(data.error().at(path));
    return std::move(*data);
  };
  if (c.world_size == place.world_size) {
    c.data = state_of(place.rank);
    return c;
  }
  // Other ranks: their states as one, of which each takes its lanes; and batches are counted in
  // those of the new number of ranks.
  std::vector<state> of_ranks;
  of_ranks.reserve(static_cast<std::size_t>(c.world_size));
  for (int r = 0; r < c.world_size; ++r) of_ranks.push_back(state_of(r));
  c.data = merged(of_ranks);
  for (std::int64_t* count : {&c.batch_in_epoch, &c.epoch_batches, &c.samples}) {
    *count = *count * c.world_size / place.world_size;
  }
  return c;
}

}  // namespace millrace
