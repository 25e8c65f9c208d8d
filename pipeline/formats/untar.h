#pragma once

#include "pipeline/formats/untar_options.h"
#include "pipeline/plan/plan.h"
#include "pipeline/shards/shards.h"

namespace millrace {

struct tar_member;  // one file of an archive

// `shards | untar() | group_by_key()` reads the samples of tar archives: the same as
// read_samples(tar_samples(options)).
//
// untar() opens the shards of a lane one after the other. Folders, links and devices are skipped
// and counted; names that WebDataset ignores (`__name__` at the top, anything below such a folder)
// are skipped. Zero-copy: a field is a slice of a read buffer, unless it straddles two. Shards
// compressed with gzip, bzip2, xz, zstd, lz4 or compress(1) are recognised by their first bytes.
//
// Errors are skippable and name URL, archive offset and member. After one that concerns a member
// alone (a sparse file, one larger than the budget allows), reading continues with the next sample,
// after any other with the next shard. Examples: examples/keys.cc, examples/epoch.cc.
struct untar_stage {
  using input = shard_ref;
  using output = tar_member;
  untar_options options;  // how the archives are read
};
// Makes the stage. Any thread.
inline untar_stage untar(untar_options options = {}) {
  return {std::move(options)};
}

// The files of shards, which only group_by_key() takes.
struct untarred_shards {
  using value_type = tar_member;
  lane_plan<shard_ref> shards;  // as shards() made it
  untar_options options;        // of untar()
};
// Appends untar() to shards().
inline untarred_shards operator|(lane_plan<shard_ref> front, untar_stage back) {
  return {std::move(front), std::move(back.options)};
}

}  // namespace millrace
