#pragma once

#include "pipeline/formats/untar.h"
#include "pipeline/plan/plan.h"

namespace millrace {

// Combines consecutive files of one shard with equal keys into samples. A sample is left out, with
// a skippable error, if two of its files have one extension, ignoring case (duplicate_field), or if
// it has more fields or longer names than a sample may have (too_large). A sample that a broken
// shard cuts is left out with the shard's error: there are no half samples. Examples:
// examples/keys.cc, examples/epoch.cc.
struct group_stage {
  using input = tar_member;
  using output = sample;
};
// Makes the stage. Any thread.
inline group_stage group_by_key() {
  return {};
}

// Makes samples of the files, as read_samples() of tar_samples().
lane_plan<sample> operator|(untarred_shards front, group_stage back);

}  // namespace millrace
