#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "pipeline/formats/untar_options.h"
#include "pipeline/plan/plan.h"
#include "pipeline/shards/shards.h"
#include "pipeline/state/shard_head.h"

namespace millrace {

// One file of an archive.
struct tar_member {
  std::string name;
  bytes data;
  std::int64_t offset = 0;    // of its first header block, including extension headers
  std::int64_t number = 0;    // of its sample in the shard, counted from 0
  bool ends_archive = false;  // not a file: what follows belongs to other samples
  bool after_damage = false;  // the first member after damage
  bool copied = false;        // `data` has memory of its own; false: a slice of a read buffer
};

// Reads the files of one shard.
class shard_reader {
 public:
  // Begins at `offset`, after `given` samples of `which`. `had`: the head of a shard that was read
  // before; if it is this shard's and the shard's first bytes have changed, next() fails with
  // `changed`. `lane` outlives the reader.
  shard_reader(lane_context& lane, std::shared_ptr<const untar_options> how, const shard_ref& which,
               std::uint64_t offset, std::int64_t given = 0, shard_head had = {});
  ~shard_reader();
  // Returns the next file, or the end of an archive (a shard may have several); nullopt at the
  // shard's end.
  awaitable<result<std::optional<tar_member>>> next();
  // The offset of the next member's header.
  std::int64_t offset() const;
  // Samples begun before offset(), including those before the reader began.
  std::int64_t given() const;
  // The head of the shard; unknown until offset() is past it.
  shard_head head() const;
  // After an error: whether this shard has no more members to return.
  bool is_broken() const;
  // Whether the shard was damaged, and no member has been returned since.
  bool is_after_damage() const;
  // The file on which a function of untar_options failed, if that was the last error.
  struct refused_file {
    std::optional<std::string> name;  // nullopt: rename failed; it may belong to any sample
  };
  const std::optional<refused_file>& refused() const;

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace millrace
