#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pipeline/lane_cursor.h"
#include "pipeline/order_hooks.h"
#include "pipeline/plan.h"
#include "pipeline/shard_index.h"

namespace millrace {

enum class epoch_mode {
  exact,            // every sample once per epoch; ranks may differ in length
  resample,         // shards drawn with replacement, for ever
  equal,            // as many samples on every rank: those that do not go round are left out
  equal_repeating,  // the same, with some given twice instead
};

// The order in which shards are read, and by which rank: docs/order.md.
struct shard_list_options {
  std::uint64_t seed = 0;
  int rank = 0;        // of this process, in [0, world_size)
  int world_size = 1;  // processes that share the list
  // Sequences into which the list is divided; rank r reads lanes l with l mod world_size = r.
  // Global batches hold the same samples for every world size that divides it. 0: the smallest
  // multiple of world_size that is at least 8.
  int lanes = 0;
  epoch_mode mode = epoch_mode::exact;
  bool shuffle = true;  // false: the list's own order, every epoch
  // Passes over the list. After the last one next() returns the end every time: a second loop over
  // a loader of 1 epoch has no items.
  std::int64_t epochs = 1;
  std::int64_t first_epoch = 0;
  // How many samples each shard has, in the order of the list. The equal modes need it. With the
  // offsets of samples, `exact` deals samples instead of shards where there are few shards, so that
  // lanes differ by one sample at most.
  std::shared_ptr<const shard_index> index = {};
  order_hooks hooks = {};

  int lane_count() const;
  int rank_of(std::int64_t lane) const;
};

// A shard to read, or a part of it.
struct shard_ref {
  std::int64_t shard = 0;  // index in the list
  std::int64_t draw = 0;   // which one of its lane's epoch, from 0
  std::int64_t epoch = 0;
  std::int64_t begin = 0;     // byte at which to begin
  std::int64_t end = 0;       // and before which to end; 0: at the shard's end
  std::int64_t skip = 0;      // samples to pass over, from there
  std::int64_t samples = -1;  // to give at most; -1: all
  seen_before before = {};    // `begin`

  bool operator==(const shard_ref&) const = default;
};

// Whether no sample of a shard comes, where an error stood before the first one of `part`: it
// cannot be read, or all of it was asked for, as far as `index` (none: nullptr) knows.
bool loses_shard(const error& why, const shard_ref& part, const shard_index* index);

// What each lane reads in one epoch: a pure function of (the list, options, epoch, tail). `tail`
// applies only in its own epoch.
class epoch_order {
 public:
  epoch_order(const std::vector<std::string>& urls, const shard_list_options& options,
              std::int64_t epoch, const epoch_tail& tail = {});
  std::vector<shard_ref> lane(std::int64_t l) const;
  // The numbers of the shards in a lane's epoch, where it reads whole shards in turn: for long
  // lists, of which a lane need not keep more.
  bool is_of_whole_shards() const { return !cuts_ && !has_tail_; }
  std::vector<std::uint32_t> whole_shards(std::int64_t l) const;

 private:
  std::vector<std::int64_t> permuted(const std::vector<std::string>& urls) const;
  std::vector<shard_ref> dealt(std::int64_t l, std::int64_t lanes) const;
  std::vector<shard_ref> cut(std::int64_t l, std::int64_t lanes) const;
  void apply(const std::vector<lane_cursor>& level);

  const shard_list_options& options_;
  std::int64_t epoch_;
  std::size_t shards_in_all_ = 0;
  bool cuts_ = false;
  std::vector<std::int64_t> shards_;  // in the epoch's order
  std::vector<shard_ref> rest_;       // with a tail: what is left, in the order to deal it in
  bool has_tail_ = false;
};

// Whether `options` make lanes of equal numbers of samples, where there are `lanes` of them.
bool deals_samples(std::size_t shards, const shard_list_options& options, std::size_t lanes);
bool deals_samples(std::size_t shards, const shard_list_options& options);
// A fingerprint with the lengths of shards, on which the order depends where samples are dealt.
std::uint64_t with_lengths(const shard_index& index, std::uint64_t before);
// Samples that an equal epoch omits, or gives twice (negative).
std::int64_t left_out(const shard_list_options& options);

// The shards of one lane, one after the other. Single-threaded.
class shard_order {
 public:
  shard_order(std::shared_ptr<const std::vector<std::string>> urls,
              const shard_list_options& options, std::int64_t lane);

  // nullopt ends an epoch; then the next one begins, if there is one. Throws `failure`: usage where
  // a hook arranges other shards than it was given, no_samples where none is left to draw from.
  std::optional<shard_ref> next();

  std::int64_t epoch() const { return epoch_; }
  std::int64_t draw() const { return draw_; }
  void seek(std::int64_t epoch, std::int64_t draw, epoch_tail tail = {});

 private:
  shard_ref drawn();

  std::shared_ptr<const std::vector<std::string>> urls_;
  shard_list_options options_;
  std::int64_t lane_;
  std::int64_t epoch_;
  std::int64_t draw_ = 0;
  epoch_tail tail_;
  std::int64_t planned_epoch_ = -1;
  // Of this lane, in the planned epoch: whole shards or parts. To draw from: those that a hook has
  // selected.
  std::vector<std::uint32_t> whole_;
  std::vector<shard_ref> parts_;
};

// Throws `failure` (no_memory) where the budget leaves no read buffers for a lane that has no
// shards of its own (there are fewer than lanes) but takes part in an epoch begun with other lanes.
void check_can_read(const lane_context& lane);
// The same for one shard: of a mix, the source that the shard is of must have read buffers.
void check_can_read(const lane_context& lane, std::int64_t shard);

// The head of a plan. Throws `failure` (usage) for invalid options: an empty list, a rank outside
// the world, fewer lanes or shards than ranks, an equal epoch of unknown length, a hook that gives
// a lane to no rank.
lane_plan<shard_ref> shards(std::vector<std::string> urls, const shard_list_options& options = {});
// The shards of an index, which gives their lengths as well.
lane_plan<shard_ref> indexed_shards(shard_index index, shard_list_options options = {});

}  // namespace millrace
