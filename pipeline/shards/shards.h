#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/plan/plan.h"
#include "pipeline/shards/order_hooks.h"
#include "pipeline/shards/shard_index.h"
#include "pipeline/state/lane_cursor.h"

namespace millrace {

// Contents of an epoch: docs/order.md.
enum class epoch_mode {
  exact,            // every sample once per epoch; ranks may differ in length
  resample,         // shards drawn with replacement, forever
  equal,            // as many samples on every rank: the remainder is left out
  equal_repeating,  // the same, but some samples are given twice instead
};
// The names of the modes, in the order of the enumerators.
inline constexpr auto epoch_mode_names =
    std::to_array<std::string_view>({"exact", "resample", "equal", "equal_repeating"});

// Options of shards(): the order in which shards are read, and by which rank (docs/order.md).
struct shard_list_options {
  std::uint64_t seed = 0;  // of the order of shards
  int rank = 0;            // of this process, in [0, world_size)
  int world_size = 1;      // processes that share the list, 1 to 65,536
  // Sequences into which the list is divided, at most 65,536; rank r reads the lanes l with l mod
  // world_size = r. Global batches hold the same samples for every world size that divides it. 0:
  // the smallest multiple of world_size that is at least 8.
  int lanes = 0;
  epoch_mode mode = epoch_mode::exact;  // what an epoch consists of
  bool shuffle = true;                  // false: the list's own order in every epoch
  // Passes over the list, at least 1. After the last one next() returns the end every time: a
  // second loop over a loader of 1 epoch has no items.
  std::int64_t epochs = 1;
  std::int64_t first_epoch = 0;  // the number of the first one
  // Number of samples of each shard, in the order of the list; required by the equal modes. With
  // the offsets of samples, `exact` distributes samples instead of shards if there are few shards,
  // so that lanes differ by at most one sample.
  std::shared_ptr<const shard_index> index = {};
  order_hooks hooks = {};  // functions of the program, instead of the above

  // The number of lanes of all ranks.
  int lane_count() const;
  // The rank that reads a lane.
  int rank_of(std::int64_t lane) const;
};

// A shard to read, or a part of it.
struct shard_ref {
  std::int64_t shard = 0;     // index in the list
  std::int64_t draw = 0;      // its number in its lane's epoch, from 0
  std::int64_t epoch = 0;     // counted from 0
  std::int64_t begin = 0;     // byte at which to begin
  std::int64_t end = 0;       // byte before which to end; 0: the shard's end
  std::int64_t skip = 0;      // samples to skip at `begin`
  std::int64_t samples = -1;  // the most to give; -1: all
  seen_before before = {};    // what was seen before `begin`

  bool operator==(const shard_ref&) const = default;
};

// Whether a shard gives no sample because of an error before the first one of `part`: it cannot be
// read, or `part` is all of it, as far as `index` (nullptr: none) knows.
bool loses_shard(const error& why, const shard_ref& part, const shard_index* index);

// The shards that each lane reads in one epoch: a pure function of (the list, options, epoch,
// tail). `tail` applies only in its own epoch. `options` must outlive it.
class epoch_order {
 public:
  // Permutes the list. Throws `failure`: usage if a hook arranges other shards than it was given,
  // or what a hook throws.
  epoch_order(const std::vector<std::string>& urls, const shard_list_options& options,
              std::int64_t epoch, const epoch_tail& tail = {});
  // The shards of lane `l`, in the order in which it reads them.
  std::vector<shard_ref> lane(std::int64_t l) const;
  // Whether lanes read whole shards in turn: whole_shards() then gives the numbers of a lane's,
  // which take less memory for long lists.
  bool is_of_whole_shards() const { return !cuts_ && !has_tail_; }
  // The numbers of the shards that lane `l` reads, in order. Only if is_of_whole_shards().
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
  std::vector<shard_ref> rest_;       // with a tail: what is left, in the order to distribute it in
  bool has_tail_ = false;
};

// Whether `options` make lanes of equal numbers of samples, for this many lanes (by default those
// of `options`).
bool deals_samples(std::size_t shards, const shard_list_options& options, std::size_t lanes);
bool deals_samples(std::size_t shards, const shard_list_options& options);
// Continues a fingerprint by the lengths of shards, on which the order depends if samples are
// distributed.
std::uint64_t with_lengths(const shard_index& index, std::uint64_t before);
// Samples that an equal epoch leaves out; negative: gives twice.
std::int64_t left_out(const shard_list_options& options);

// The shards of one lane, one after the other. One thread.
class shard_order {
 public:
  // Begins with options.first_epoch.
  shard_order(std::shared_ptr<const std::vector<std::string>> urls,
              const shard_list_options& options, std::int64_t lane);

  // The next shard. nullopt ends an epoch; then the next one begins, if there is one. Throws
  // `failure`: usage if a hook arranges other shards than it was given, no_samples if none is left
  // to draw from.
  std::optional<shard_ref> next();

  // The epoch of the next shard.
  std::int64_t epoch() const { return epoch_; }
  // The number of the next shard in its epoch.
  std::int64_t draw() const { return draw_; }
  // Continues with this draw of this epoch. `tail`: if that was begun with other lanes.
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
  // This lane's whole shards or parts in the planned epoch. With resampling: the shards that a hook
  // has selected.
  std::vector<std::uint32_t> whole_;
  std::vector<shard_ref> parts_;
};

// Throws `failure` (no_memory) if the budget leaves no read buffers for a lane that has no shards
// of its own (there are fewer than lanes) but takes part in an epoch begun with other lanes.
void check_can_read(const lane_context& lane);
// The same for one shard: in a mix, the source of the shard must have read buffers.
void check_can_read(const lane_context& lane, std::int64_t shard);

// The head of a plan: a list of URLs and paths, from expand() or find_shards(). Throws `failure`
// (usage) for invalid options: an empty list, a rank outside the world, fewer lanes or shards than
// ranks, an equal epoch of unknown length, a hook that gives a lane to no rank. Examples:
// examples/epoch.cc, docs/order.md.
lane_plan<shard_ref> shards(std::vector<std::string> urls, const shard_list_options& options = {});
// The head of a plan: the shards of an index, from read_index(), which gives their lengths as well.
// Throws as shards() does.
lane_plan<shard_ref> indexed_shards(shard_index index, shard_list_options options = {});

}  // namespace millrace
