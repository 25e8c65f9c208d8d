#pragma once

#include "pipeline/plan.h"
#include "pipeline/shards.h"

namespace millrace {

// The lanes of this rank as one stream, sample by sample: always the lane whose next sample has the
// lowest position; a lane that has finished the epoch is skipped. Each sample gets its position
// here. An epoch without a single sample is an error (no_samples).
//
// Samples that later stages hold when the state is saved are given back to their lanes and come out
// first again; this makes a state independent of the number of ranks and threads.
plan<sample> interleaved(lane_plan<sample> lanes);

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

}  // namespace millrace
