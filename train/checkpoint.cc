#include "train/checkpoint.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "train/model.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

tensor_dict tensors_of(const checkpoint_files& files, const std::string& path, const char* name) {
  return tensors_in(file_in(files, name, path), (fs::path(path) / name).string());
}

}  // namespace

checkpoint checkpoint_from(const checkpoint_files& files, const std::string& path,
                           const job_place& place, int batch_size, std::size_t state_bytes) {
  return {record_in(files, path, place.rank, place.world_size, batch_size, state_bytes),
          tensors_of(files, path, model_name), tensors_of(files, path, momentum_name)};
}

void check_sound(const chosen_checkpoint& c) {
  for (const char* file : {model_name, momentum_name}) {
    for (const auto& [name, tensor] : tensors_of(c.files, c.path, file)) {
      check_finite(name, tensor, (fs::path(c.path) / file).string());
    }
  }
}

void save_checkpoint(const std::string& folder, const checkpoint& c, process_group& group) {
  const auto data = group.gathered(c.data.to_json());
  group.together([&] {
    if (group.is_first())
      write_checkpoint(
          folder, step_name(c.step),
          files_of(c,
                   {{model_name, tensors_text(c.model)}, {momentum_name, tensors_text(c.momentum)}},
                   data));
  });
}

std::optional<std::pair<std::string, checkpoint>> load_checkpoint(
    const std::function<std::optional<chosen_checkpoint>()>& choose, process_group& group,
    int batch_size, std::size_t state_bytes) {
  std::optional<chosen_checkpoint> chosen;
  group.together([&] {
    if (group.is_first()) chosen = choose();
  });
  std::vector<std::string> names;
  if (chosen) {
    for (const auto& [name, text] : chosen->files) names.push_back(name);
  }
  const auto list =
      json::parse(group.shared(json{{"path", chosen ? chosen->path : ""}, {"files", names}}.dump(
          -1, ' ', false, json::error_handler_t::replace)));
  if (list.at("files").empty()) return std::nullopt;
  checkpoint_files files;
  for (const auto& name : list.at("files").get<std::vector<std::string>>()) {
    files[name] = group.shared(chosen ? std::move(chosen->files[name]) : "");
  }
  const auto path = list.at("path").get<std::string>();
  std::optional<checkpoint> whole;
  group.together(
      [&] { whole = checkpoint_from(files, path, group.place(), batch_size, state_bytes); });
  return std::pair(path, std::move(*whole));
}

}  // namespace millrace
