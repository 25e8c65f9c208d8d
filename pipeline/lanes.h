#pragma once

#include "pipeline/plan.h"
#include "pipeline/shards.h"

namespace millrace {

// The lanes of this rank as one stream, sample by sample: always the lane whose next sample has the
// lowest position; a lane that is through with the epoch is passed over. Each sample gets its
// position here. An epoch without a single sample is an error (no_samples).
//
// What stages behind this one hold when the state is saved is given back to its lane and comes out
// again first; that is what makes a state independent of the number of ranks and threads.
plan<sample> interleaved(lane_plan<sample> lanes);

// What the state says of a lane, of the list of shards, and of the positions given out before the
// lanes were dealt anew.
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

// The name under which stages behind the lanes hold samples.
inline constexpr const char* pending_record = "pending";
// The record to which such a stage adds a value when it also holds an end of epoch: the lanes have
// begun the next one, which the consumer has not.
inline constexpr const char* end_owed_record = "end_owed";
// The epoch that the consumer is in: the lanes' own, less the ends that later stages hold.
inline constexpr const char* epoch_record = "lanes_epoch";
std::int64_t consumers_epoch(const state& from);

}  // namespace millrace
