#pragma once

#include <memory>
#include <string>

#include "pipeline/run/engine_options.h"
#include "train/checkpoints/checkpoint_place.h"

namespace millrace {

// The place that --checkpoint-dir names: a URL of a store, or the path of a folder. `reach`: how a
// store is reached. Throws `failure` (usage) if millrace does not write there.
std::unique_ptr<checkpoint_place> checkpoint_place_at(const std::string& where,
                                                      const engine_options& reach);

// Reads a checkpoint from a folder (read_checkpoint()) or from a server, by its URL.
checkpoint_files read_checkpoint_at(const std::string& path, const engine_options& reach);

}  // namespace millrace
