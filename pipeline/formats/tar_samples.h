#pragma once

#include <memory>

#include "pipeline/formats/sample_source.h"
#include "pipeline/formats/untar_options.h"

namespace millrace {

// Tar archives as a format: their consecutive files with equal keys are samples (untar.h, group.h).
std::shared_ptr<const sample_source> tar_samples(const untar_options& options = {});

}  // namespace millrace
