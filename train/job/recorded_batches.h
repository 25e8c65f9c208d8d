#pragma once

#include <cstdint>
#include <string>

#include "engine/host/job_place.h"
#include "pipeline/pixels/image.h"

namespace millrace {

// The batches that --record-batches writes, for comparisons with other programs.

// Throws `failure` (usage) if the folder (empty: none) holds batches of this step or later ones,
// or, unless the run is resumed, anything.
void check_recorded(const std::string& folder, std::int64_t step, bool is_resumed);
// Writes a batch into `folder`, as images and labels (safetensors). Throws `failure` (io_failed).
void record(const host_batch& b, const std::string& folder, const job_place& place,
            std::int64_t step);

}  // namespace millrace
