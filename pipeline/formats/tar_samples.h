#pragma once

#include <memory>

#include "pipeline/formats/sample_source.h"
#include "pipeline/formats/shard_head.h"
#include "pipeline/formats/untar_options.h"

namespace millrace {

// Tar archives as a format: untar() and group_by_key() for one shard. `had`: the head that a shard
// must still have; null: none.
std::shared_ptr<const sample_source> tar_samples(const untar_options& options = {},
                                                 std::shared_ptr<const shard_head> had = nullptr);

}  // namespace millrace
