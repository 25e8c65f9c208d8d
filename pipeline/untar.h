#pragma once

#include <functional>
#include <string>

#include "pipeline/plan.h"
#include "pipeline/shards.h"

namespace millrace {

// Both functions are called on the spine, once for each file, in archive order; they must be pure.
struct untar_options {
  // After damage: go on with the next header that is one, instead of with the next shard. What was
  // lost is an error of its own, and counted in the ledger.
  bool resync = false;
  // The name that a file is to have, before `select` sees it.
  std::function<std::string(std::string_view name)> rename = nullptr;
  // Whether a file is wanted.
  std::function<bool(std::string_view name)> select = nullptr;
};

// Opens the shards of a lane one after the other and yields their files. Folders, links and devices
// are passed over and counted, and names that WebDataset leaves out (`__name__` at the top,
// anything below a folder of such a name) are passed over. Zero-copy: a member is a slice of a read
// buffer, unless it straddles two. Shards compressed with gzip, bzip2, xz, zstd or lz4 are told by
// their first bytes.
//
// Errors are skippable and name URL, archive offset and member. Where one concerns a member alone
// (a sparse file, one larger than the budget allows), the next member follows, else the next shard.
lane_stage<shard_ref, tar_member> untar(untar_options options = {});

// Whether WebDataset's reader leaves this member out.
bool is_meta_name(std::string_view name);

// One shard being read from `offset` on: untar() without the lane, as lane.untar says.
class shard_reader {
 public:
  // `offset`: where to begin, `given` samples of `which` before it.
  shard_reader(lane_context& lane, shard_ref which, std::uint64_t offset, std::int64_t given = 0);
  ~shard_reader();
  // The next file, or the end of an archive (there may be several); nullopt at the shard's end.
  awaitable<result<std::optional<tar_member>>> next();
  // Where the header of the next member begins.
  std::int64_t offset() const;
  // Samples begun so far, those before `offset` included.
  std::int64_t given() const;
  // After an error: whether nothing more is to be had of this shard.
  bool is_broken() const;

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace millrace
