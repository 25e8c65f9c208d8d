#include "train/checkpoints/checkpoint.h"

#include <filesystem>

#include "train/models/weights.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

tensor_dict tensors_of(const checkpoint_files& files, const std::string& path, const char* name) {
  return tensors_in(file_in(files, name, path), (fs::path(path) / name).string());
}

}  // namespace

checkpoint checkpoint_from(const checkpoint_files& files, const std::string& path,
                           const read_terms& terms) {
  return {record_in(files, path, terms.place.rank, terms.place.world_size, terms.lanes,
                    terms.batch_size, terms.state_bytes),
          tensors_of(files, path, model_name), tensors_of(files, path, optimizer_name),
          files.contains(ema_name) ? tensors_of(files, path, ema_name) : tensor_dict()};
}

void check_sound(const chosen_checkpoint& c) {
  for (const char* file : {model_name, optimizer_name, ema_name}) {
    if (file == ema_name && !c.files.contains(file)) continue;
    for (const auto& [name, tensor] : tensors_of(c.files, c.path, file)) {
      check_finite(name, tensor, (fs::path(c.path) / file).string());
    }
  }
}

checkpoint_files files_to_save(const checkpoint& c, const std::vector<std::string>& states) {
  checkpoint_files weights{{model_name, tensors_text(c.model)},
                           {optimizer_name, tensors_text(c.optimizer)}};
  if (!c.ema.empty()) weights[ema_name] = tensors_text(c.ema);
  return files_of(c, std::move(weights), states);
}

std::optional<std::pair<std::string, checkpoint>> load_checkpoint(
    const std::function<std::optional<chosen_checkpoint>()>& choose, process_group& group,
    const read_terms& terms) {
  std::optional<chosen_checkpoint> chosen;
  group.together([&] {
    if (group.is_first()) chosen = choose();
  });
  // Not as JSON: a path need not be UTF-8.
  const std::string path = group.shared(chosen ? chosen->path : "");
  checkpoint_files here;
  if (chosen) here = std::move(chosen->files);
  checkpoint_files files;
  auto next = here.begin();
  for (auto left = std::stoull(group.shared(std::to_string(here.size()))); left > 0; --left) {
    const std::string name = group.shared(group.is_first() ? next->first : "");
    files[name] = group.shared(group.is_first() ? std::move((next++)->second) : "");
  }
  if (files.empty()) return std::nullopt;
  std::optional<checkpoint> whole;
  group.together([&] { whole = checkpoint_from(files, path, terms); });
  return std::pair(path, std::move(*whole));
}

}  // namespace millrace
