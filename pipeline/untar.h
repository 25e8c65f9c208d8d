#pragma once

#include <functional>
#include <string>

#include "pipeline/plan.h"
#include "pipeline/shard_head.h"
#include "pipeline/shards.h"
#include "pipeline/tar_parser.h"

namespace millrace {

// Both functions are called on the spine, once for each file, in archive order; they must be pure.
struct untar_options {
  // After damage, continue at the next valid header instead of the next shard. The loss is a
  // separate error, and counted in the ledger.
  bool resync = false;
  // How to treat an archive without end blocks. `required`: it was cut (truncated), and its last
  // sample is left out, unless an index gives its length and it is that long. `optional`: taken as
  // whole.
  millrace::end_blocks end_blocks = millrace::end_blocks::required;
  // Renames a file, before `select` sees it.
  std::function<std::string(std::string_view name)> rename = nullptr;
  // Whether a file is wanted.
  std::function<bool(std::string_view name)> select = nullptr;
};

// Opens the shards of a lane one after the other and yields their files. Folders, links and devices
// are skipped and counted; names that WebDataset ignores (`__name__` at the top, anything below a
// folder of such a name) are skipped. Zero-copy: a member is a slice of a read buffer, unless it
// straddles two. Shards compressed with gzip, bzip2, xz, zstd or lz4 are told by their first bytes.
//
// Errors are skippable and name URL, archive offset and member. Where one concerns a member alone
// (a sparse file, one larger than the budget allows), the next member follows, else the next shard.
lane_stage<shard_ref, tar_member> untar(untar_options options = {});

// Whether WebDataset's reader ignores this member.
bool is_meta_name(std::string_view name);

// Reads one shard from `offset` on: untar() without the lane, by the options lane.untar.
class shard_reader {
 public:
  // `offset`: where to begin, `given` samples of `which` before it. `had`: the head that a shard
  // had before; where it is this one's and has changed, next() fails with `changed`.
  shard_reader(lane_context& lane, shard_ref which, std::uint64_t offset, std::int64_t given = 0,
               shard_head had = {});
  ~shard_reader();
  // The next file, or the end of an archive (there may be several); nullopt at the shard's end.
  awaitable<result<std::optional<tar_member>>> next();
  // The offset of the next member's header.
  std::int64_t offset() const;
  // Samples begun so far, those before `offset` included.
  std::int64_t given() const;
  // No sample is whole: what breaks here has given none.
  bool is_in_first_sample() const;
  // Of what is read; not known before it is passed.
  shard_head head() const;
  // After an error: whether this shard gives no more members.
  bool is_broken() const;

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace millrace
