#pragma once

#include <memory>

#include "pipeline/formats/sample_source.h"
#include "pipeline/formats/untar_options.h"

namespace millrace {

// Tar archives as a format for read_samples(): consecutive files of a shard with equal keys are
// samples, as untar() and group_by_key() say.
std::shared_ptr<const sample_source> tar_samples(const untar_options& options = {});

}  // namespace millrace
