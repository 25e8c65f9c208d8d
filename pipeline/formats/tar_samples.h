#pragma once

#include <memory>

#include "pipeline/formats/sample_source.h"
#include "pipeline/formats/shard_head.h"
#include "pipeline/formats/untar_options.h"

namespace millrace {

// Tar archives as a format for read_samples(): what untar() and group_by_key() do for a shard.
// `had`: the head that a shard must still have; null: any.
std::shared_ptr<const sample_source> tar_samples(const untar_options& options = {},
                                                 std::shared_ptr<const shard_head> had = nullptr);

}  // namespace millrace
