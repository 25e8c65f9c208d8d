#pragma once

#include "pipeline/plan.h"

namespace millrace {

// Combines consecutive members of one shard with equal keys into samples. Two members with one
// extension (case ignored) are an error (duplicate_field, skippable), and so are more fields or
// longer names than a sample may have (too_large): the sample is left out. A sample that a broken
// shard cuts is left out with the shard's error: there is never half a sample. Examples:
// examples/keys.cc, examples/epoch.cc.
lane_stage<tar_member, sample> group_by_key();

}  // namespace millrace
