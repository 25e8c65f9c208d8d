#pragma once

#include "pipeline/formats/untar_options.h"
#include "pipeline/plan.h"
#include "pipeline/shards.h"

namespace millrace {

// Opens the shards of a lane one after the other and yields their files. Folders, links and devices
// are skipped and counted; names that WebDataset ignores (`__name__` at the top, anything below
// such a folder) are skipped. Zero-copy: a member is a slice of a read buffer, unless it straddles
// two. Shards compressed with gzip, bzip2, xz, zstd or lz4 are recognised by their first bytes.
//
// Errors are skippable and name URL, archive offset and member. After one that concerns a member
// alone (a sparse file, one larger than the budget allows) the next member follows, after any other
// the next shard. Examples: examples/keys.cc, examples/epoch.cc.
lane_stage<shard_ref, tar_member> untar(untar_options options = {});

}  // namespace millrace
