#pragma once

#include "pipeline/plan.h"
#include "pipeline/shards.h"

namespace millrace {

// Opens the shards of a lane one after the other and yields their files. Folders, links and devices
// are passed over, and so are names that WebDataset leaves out (`__name__` at the top, anything
// below a folder of such a name). Zero-copy: a member is a slice of a read buffer, unless it
// straddles two.
//
// Errors are skippable and name URL, archive offset and member: after one, the next shard follows.
lane_stage<shard_ref, tar_member> untar();

// Whether WebDataset's reader leaves this member out.
bool is_meta_name(std::string_view name);

// One shard being read from `offset` on: untar() without the lane.
class shard_reader {
 public:
  shard_reader(lane_context& lane, shard_ref which, std::uint64_t offset);
  ~shard_reader();
  // The next file; nullopt at the archive's end.
  awaitable<result<std::optional<tar_member>>> next();
  // Where the header of the next member begins.
  std::int64_t offset() const;

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace millrace
