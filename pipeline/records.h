#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/dealing.h"
#include "pipeline/lane_cursor.h"
#include "pipeline/state.h"

// The records of a saved state that more than one unit reads or writes.

namespace millrace {

// The records that describe where a lane stands. Written by the stages that know best.
struct cursor_record {
  static constexpr const char* name = "cursor";
  static state::record of(std::int64_t epoch, const lane_cursor& at) {
    return {epoch, at.draw, at.offset, at.given};
  }
  // Throws `failure` (bad_state) where there is none.
  static std::pair<std::int64_t, lane_cursor> in(const state& from, const std::string& name);
  // For a reader of shards that was restored to `start` and not asked for anything yet: within the
  // shard whose record the stage before it has just saved in `to`.
  static void put_restored(state& to, const std::string& name, const lane_cursor& start);
};
inline constexpr const char* tail_record = "tail";
inline constexpr const char* tail_seen_record = "tail_seen";  // lane_cursor::before, where any is
// A fingerprint of the list and the lengths of its shards, where the first lanes of a tail have
// dealt samples.
inline constexpr const char* tail_lengths_record = "tail_lengths";
epoch_tail tail_in(const state& from);
void put_tail(state& to, const epoch_tail& tail);

// The records of a lane, of the list of shards, and of the positions given out before the lanes
// were redistributed.
struct lane_record {
  std::int64_t lane = 0;
  std::int64_t epoch = 0;
  std::int64_t given = 0;
  bool ended = false;
  std::int64_t failed = 0;  // samples and shards, in this epoch
};
std::vector<lane_record> lane_records(const state& from);
void put_lane_records(state& to, const std::vector<lane_record>& lanes);
inline constexpr const char* lanes_record = "lanes";
inline constexpr const char* plan_record = "plan";
inline constexpr std::size_t plan_record_lanes = 2;  // which of its values is the number of lanes
inline constexpr std::size_t plan_record_mode = 3;   // and which the epoch mode
// Lane and number of those samples of a lane, the last of its pending ones, with which its own
// stages failed. They are among its `given` as the state has it, and take no position where they
// fail again.
inline constexpr const char* failed_record = "lanes_failed";
std::size_t failed_in(const state& from, std::int64_t lane);
inline constexpr const char* base_record = "lanes_base";
std::int64_t position_base(const state& from);
// In a state that was dealt to other lanes: of how many lanes the plan's record names the list.
inline constexpr const char* list_lanes_record = "list_lanes";
std::int64_t lanes_of_list(const state& from);

// The record to which a later stage adds a value when it also holds an end of epoch: the lanes have
// begun the next epoch, which the consumer has not.
inline constexpr const char* end_owed_record = "end_owed";
// Ends that the lanes gave after that of the last epoch: nobody owes them.
inline constexpr const char* ends_past_record = "ends_past";
// For each stage that gives ends of its own in place of those of the stages in front (epochs_of),
// in order: how many of the ends owed were in the state as those in front had saved.
inline constexpr const char* own_ends_record = "own_ends";
// These numbers, and that of all ends owed.
state::record ends_held_in(const state& saved);

// How the names of records end that are of one rank of several; the beginnings of that: of any, and
// of the first.
std::string of_rank(int rank, int world_size);
inline constexpr const char* of_rank_begin = " of rank ";
inline constexpr const char* of_rank_0 = " of rank 0 of ";
// With such an ending, in a state merged of all ranks: what ends_held_in() was for the rank.
inline constexpr const char* ends_held_record = "ends_held";

// The epoch that the consumer is in: the lanes' own, less the ends that later stages hold.
inline constexpr const char* epoch_record = "lanes_epoch";
std::int64_t consumers_epoch(const state& from);
// In a state merged of all ranks, and in those of runs that were resumed from it: each lane, and
// the latest epoch that a consumer of it was in.
inline constexpr const char* consumers_record = "lanes_consumers";
std::optional<std::int64_t> consumer_of(const state& from, std::int64_t lane);

// Throws `failure` (bad_state) where a number of a state can be nobody's: a state is a file, and
// stages calculate with what it says.
void check_numbers(const state& from);
error senseless(std::string_view record);

// What group_by_key() saves beside its cursor.
struct group_record {
  static constexpr const char* name = "group";
  bool owes_end = false;  // of the epoch
  seen_before before;     // the sample that comes next

  // Of a state without such a record, what it is at first. Throws `failure` (bad_state).
  static group_record in(const state& from, const std::string& name);
  void put(state& to, const std::string& name) const;
  // For other lanes (lane_dealer): what the first lane that has met a whole sample knows of it, for
  // what is damaged before the first whole one. The data are of one kind.
  static void deal(const dealing& what, state& to);
};

// The record of window_shuffle(): each lane has one, also where it is within no window. Older
// versions wrote none there.
inline constexpr const char* window_record = "window";

// The record of on_error(): the numbers of skipped or lost samples, of those in a row, and of
// passed ones; how the names of those of a second such stage, and of further ones, begin.
inline constexpr const char* skipped_record = "on_error";
// Beside it: how many of the pending samples are those of stages in front and, of the epoch under
// way, what the shards that were lost whole are judged by.
inline constexpr const char* lost_record = "lost_shards";

}  // namespace millrace
