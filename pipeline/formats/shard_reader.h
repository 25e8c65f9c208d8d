#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "pipeline/formats/untar_options.h"
#include "pipeline/plan.h"
#include "pipeline/shard_head.h"
#include "pipeline/shards.h"

namespace millrace {

// One file of an archive.
struct tar_member {
  std::string name;
  bytes data;
  std::int64_t offset = 0;    // of its first header block, extension headers included
  std::int64_t number = 0;    // which sample of the shard it belongs to, counted from 0
  bool ends_archive = false;  // no file: what follows in the shard is of other samples
  bool after_damage = false;  // the first one after damage
  bool copied = false;        // `data` has memory of its own rather than a slice of a read buffer
};

// Reads the files of one shard.
class shard_reader {
 public:
  // `offset`: where to begin, after `given` samples of `which`. `had`: the head that a shard had
  // before; if it is this shard's and has changed, next() fails with `changed`. `lane` outlives the
  // reader.
  shard_reader(lane_context& lane, std::shared_ptr<const untar_options> how, const shard_ref& which,
               std::uint64_t offset, std::int64_t given = 0, shard_head had = {});
  ~shard_reader();
  // The next file, or the end of an archive (there may be several); nullopt at the shard's end.
  awaitable<result<std::optional<tar_member>>> next();
  // The offset of the next member's header.
  std::int64_t offset() const;
  // Samples begun so far, those before `offset` included.
  std::int64_t given() const;
  // The head of what is read; unknown until that has been passed.
  shard_head head() const;
  // After an error: whether this shard gives no more members.
  bool is_broken() const;
  // Whether the shard was damaged, and no member has been given since.
  bool is_after_damage() const;
  // The file with which a function of untar_options has failed, if that is the error given last.
  struct refused_file {
    std::optional<std::string> name;  // nullopt: it has none, and may be of any sample
  };
  const std::optional<refused_file>& refused() const;

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace millrace
