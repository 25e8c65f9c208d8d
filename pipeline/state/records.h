#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/state/dealing.h"
#include "pipeline/state/lane_cursor.h"
#include "pipeline/state/state.h"

// The records of a saved state that more than one unit reads or writes.

namespace millrace {

// The records that describe the position of each lane. Written by the stages that know it best.
struct cursor_record {
  static constexpr const char* name = "cursor";  // for lane_context::id()
  // The record of a lane in `epoch`.
  static state::record of(std::int64_t epoch, const lane_cursor& at) {
    return {epoch, at.draw, at.offset, at.given};
  }
  // The epoch and the cursor of the record `name`. Throws `failure` (bad_state) if there is none.
  static std::pair<std::int64_t, lane_cursor> in(const state& from, const std::string& name);
  // For a reader of shards that was restored to `start` and not asked for anything yet: moves the
  // record that the stage before it has just saved in `to` to that place within the shard.
  static void put_restored(state& to, const std::string& name, const lane_cursor& start);
};
// The name of an epoch_tail.
inline constexpr const char* tail_record = "tail";
inline constexpr const char* tail_seen_record = "tail_seen";  // lane_cursor::before, if any is set
// A fingerprint of the list and the lengths of its shards, if the first lanes of a tail were cut by
// samples.
inline constexpr const char* tail_lengths_record = "tail_lengths";
// The tail of a state; empty if there is none. Throws `failure` (bad_state) for a damaged one.
epoch_tail tail_in(const state& from);
// Puts a tail, unless it is empty.
void put_tail(state& to, const epoch_tail& tail);

// The progress of a lane as the interleaving stage saves it.
struct lane_record {
  std::int64_t lane = 0;    // its number
  std::int64_t epoch = 0;   // in which it is
  std::int64_t given = 0;   // samples, in this epoch
  bool ended = false;       // this epoch
  std::int64_t failed = 0;  // samples and shards, in this epoch
};
// The records of a rank's lanes; none if the state has none.
std::vector<lane_record> lane_records(const state& from);
// Appends the records of lanes.
void put_lane_records(state& to, const std::vector<lane_record>& lanes);
// The name of the records of lanes.
inline constexpr const char* lanes_record = "lanes";
// The record of the list of shards and its order, by which a state knows its plan.
struct plan_record {
  static constexpr const char* name = "plan";  // of the record in a state
  std::int64_t list = 0;                       // a fingerprint
  std::int64_t seed = 0;                       // of the order
  std::int64_t lanes = 0;                      // of all ranks
  std::int64_t mode = 0;                       // an epoch_mode
  bool is_shuffled = true;                     // the list, in each epoch

  // The record of a state; nullopt: it has none.
  static std::optional<plan_record> in(const state& from);
  // The numbers of the record.
  state::record of() const { return {list, seed, lanes, mode, is_shuffled ? 1 : 0}; }
  // Puts it.
  void put(state& to) const { to.put(name, of()); }
};
// Lane and number of those pending samples of a lane, its last ones, with which its own stages
// failed. They are among its `given` in the state, and take no position if they fail again.
inline constexpr const char* failed_record = "lanes_failed";
// The number recorded for a lane; 0 if none is.
std::size_t failed_in(const state& from, std::int64_t lane);
// The name of the positions given out before the lanes were redistributed.
inline constexpr const char* base_record = "lanes_base";
// Their number; 0 if none is recorded.
std::int64_t position_base(const state& from);
// In a state that was redistributed to other lanes: the number of lanes by which the plan's record
// identifies the list.
inline constexpr const char* list_lanes_record = "list_lanes";
// The number of lanes that identifies the list: the recorded one, or else the plan's; 0 if there is
// neither.
std::int64_t lanes_of_list(const state& from);

// Samples that a resumed run passes over (shards/edited_state.h): those of an epoch with positions
// below a bound.
struct stretch_record {
  static constexpr const char* name = "lanes_skip";  // of the record
  std::int64_t epoch = 0;                            // of the data
  std::int64_t below = 0;                            // the first position that is not among them

  // Whether a sample of this epoch and position is among them.
  bool has(const std::pair<std::int64_t, std::int64_t>& place) const {
    return place.first == epoch && place.second < below;
  }
  // The record of a state; nullopt: it has none. Throws `failure` (bad_state) for a damaged one.
  static std::optional<stretch_record> in(const state& from);
  // Puts it.
  void put(state& to) const { to.put(name, {epoch, below}); }
};

// The record to which a later stage adds a value while it holds the end of an epoch: the lanes have
// begun the next epoch, but the consumer has not.
inline constexpr const char* end_owed_record = "end_owed";
// Ends that the lanes gave after the end of the last epoch: no stage owes them.
inline constexpr const char* ends_past_record = "ends_past";
// For each stage that gives ends of its own instead of those of the stages before it (epochs_of),
// in order: how many of the owed ends were in the state when those stages had saved.
inline constexpr const char* own_ends_record = "own_ends";
// These numbers, and then the number of all owed ends.
state::record ends_held_in(const state& saved);

// The ending of names of records that are of one rank of several.
std::string of_rank(int rank, int world_size);
// The beginning of that ending, for any rank.
inline constexpr const char* of_rank_begin = " of rank ";
// The beginning of that ending, for the first rank.
inline constexpr const char* of_rank_0 = " of rank 0 of ";
// With such an ending, in a state merged of all ranks: what ends_held_in() was for the rank.
inline constexpr const char* ends_held_record = "ends_held";

// The epoch of the lanes.
inline constexpr const char* epoch_record = "lanes_epoch";
// The epoch that the consumer is in: the lanes' own, less the ends that later stages hold. Throws
// `failure` (bad_state) if none is recorded.
std::int64_t consumers_epoch(const state& from);
// In a state merged of all ranks, and in those of runs that were resumed from it: each lane, and
// the latest epoch that a consumer of it was in.
inline constexpr const char* consumers_record = "lanes_consumers";
// The latest epoch recorded for a lane; nullopt if none is.
std::optional<std::int64_t> consumer_of(const state& from, std::int64_t lane);

// Whether `name`, with or without its rank, is a record of the position as a whole rather than of
// one lane or one stage. Pure.
bool is_of_position(std::string_view name);

// The kind of a record's numbers.
enum class record_numbers : std::uint8_t {
  counts,
  offsets,   // in shards, among counts
  compared,  // any: they are not calculated with
};
// A record that the library's stages save of each lane. A new one is a row of a table in
// records.cc.
struct lane_record_kind {
  std::string_view name;   // "shuffle", for lane_context::id()
  record_numbers numbers;  // what its values are
  // Puts the record as `id`, as it is before the first sample of `epoch`; `of` is the state that
  // has it. Null: a state does not tell that.
  void (*put_at_begin)(state& to, const std::string& id, const state& of, std::int64_t epoch);
};
// The kind of a record of that name within a lane; nullptr: it is of a stage of the program's own,
// or within a mix. Pure.
const lane_record_kind* kind_of_lane_record(std::string_view name);

// A record that the library's stages save of each rank. A new one is a row of a table in
// records.cc.
struct rank_record_kind {
  std::string_view name;   // "slice": without the number of the stage and the rank
  record_numbers numbers;  // what its values are
  // Puts the record `name` of these values as it is before the first sample of an epoch. Null: the
  // stage makes epochs of its own.
  void (*put_at_begin)(state& to, const std::string& name, const state::record& values);
};
// The kind of a record of that name, with number and rank; nullptr: it is of a stage of the
// program's own. Pure.
const rank_record_kind* kind_of_rank_record(std::string_view name);

// Throws `failure` (usage) if a stage with `back` records follows stages with `front` ones, and
// both save one of the same name: each would overwrite the other's.
void check_records_apart(const std::vector<lane_dealer>& front,
                         const std::vector<lane_dealer>& back, const std::string& stage);

// Throws `failure` (bad_state) if a number of a state is impossible: a state is a file, and stages
// calculate with its numbers.
void check_numbers(const state& from);
// The error (bad_state) for a record that makes no sense.
error senseless(std::string_view record);

// Record of group_by_key(), in addition to its cursor.
struct group_record {
  static constexpr const char* name = "group";  // for lane_context::id()
  bool owes_end = false;                        // of the epoch
  seen_before before;                           // before the next sample

  // The record `name`; a fresh one if a state has none. Throws `failure` (bad_state) for one of an
  // older version, within a sample.
  static group_record in(const state& from, const std::string& name);
  // Puts it as the record `name`.
  void put(state& to, const std::string& name) const;
  // For other lanes (lane_dealer): passes on what the first lane that has met a whole sample knows
  // about it, for damage before the first whole one. The data are of one kind.
  static void deal(const dealing& what, state& to);
};

// The record of window_shuffle(): each lane has one, even if it is within no window. Older versions
// wrote none there.
inline constexpr const char* window_record = "window";
// Its only value there.
inline constexpr std::int64_t within_no_window = -1;

// The record of epochs_of() (state/count_record.h). Names of records have the number of the stage
// and the rank after it.
inline constexpr const char* epochs_of_record = "epochs_of";
// That of repeated().
inline constexpr const char* repeated_record = "repeated";
// That of slice().
inline constexpr const char* slice_record = "slice";

// The record of on_error(): the numbers of samples skipped or lost, of those in a row, and of those
// passed. The names of a second such stage and of further ones begin with it.
inline constexpr const char* skipped_record = "on_error";
// Next to it: how many of the pending samples belong to earlier stages and, for the current epoch,
// the figures by which wholly lost shards are estimated (state/skip_records.h).
inline constexpr const char* lost_record = "lost_shards";

// Throws `failure` (bad_state) for a record in `saved` that is missing in `now`, the state that the
// restored stages would save.
void check_all_claimed(const state& saved, const state& now);

}  // namespace millrace
