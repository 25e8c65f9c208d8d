#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "train/checkpoints/checkpoint_files.h"

namespace millrace {

// A checkpoint that was read.
struct chosen_checkpoint {
  std::string path;        // its folder, or its URL
  checkpoint_files files;  // checked against train.json
};

// Throws `failure` if a checkpoint that was read must not be resumed.
using checkpoint_check = std::function<void(const chosen_checkpoint&)>;
// Called with what the user should know of a choice.
using choice_note = std::function<void(const std::string&)>;

// The newest of the checkpoints `all`, oldest first, that `read` finds whole and that passes
// `check`; calls `note` for newer ones. nullopt: there is none at all. If none can be resumed,
// throws the error kind of the newest.
std::optional<chosen_checkpoint> newest_sound(
    const std::vector<std::string>& all,
    const std::function<checkpoint_files(const std::string& path)>& read,
    const checkpoint_check& check, const choice_note& note);

}  // namespace millrace
