#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "pipeline/formats/shard_head.h"
#include "pipeline/formats/untar_options.h"
#include "pipeline/plan.h"
#include "pipeline/shards.h"

namespace millrace {

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
