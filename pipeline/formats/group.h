#pragma once

#include "pipeline/plan.h"

namespace millrace {

// Consecutive members of one shard with equal keys form a sample. Two members with one extension
// (case ignored) are an error (duplicate_field, skippable), and so are more fields or longer names
// than a sample may have (too_large): the sample is left out. A sample that a
// broken shard cuts is left out with the shard's error: never half a sample.
lane_stage<tar_member, sample> group_by_key();

}  // namespace millrace
