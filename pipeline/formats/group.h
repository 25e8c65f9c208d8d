#pragma once

#include "pipeline/formats/untar.h"
#include "pipeline/plan.h"

namespace millrace {

// Consecutive files of one shard with equal keys form a sample. A sample is left out, with a
// skippable error, if two of its files have one extension, ignoring case (duplicate_field), or if
// it has more fields or longer names than a sample may have (too_large). A sample that a broken
// shard cuts is left out with the shard's error: there are no half samples.
struct group_stage {
  using input = tar_member;
  using output = sample;
};
inline group_stage group_by_key() {
  return {};
}

lane_plan<sample> operator|(untarred_shards front, group_stage back);

}  // namespace millrace
