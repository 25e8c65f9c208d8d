#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/plan.h"
#include "pipeline/shards.h"

namespace millrace {

// One of the sources of a mix: its samples, including its own shuffle where it has one.
struct mix_source {
  lane_plan<sample> samples;
  double weight = 1;  // how often it is drawn, in proportion to the others
};

struct mix_options {
  // Which source gives a lane's next sample.
  enum class order {
    random,       // drawn by weight
    round_robin,  // each one in turn; weights are ignored
  };
  // When a lane's epoch ends.
  enum class until {
    all_end,     // each source gives its whole epoch; finished ones are skipped
    first_ends,  // with the first that is finished; the others continue there next epoch
  };
  std::uint64_t seed = 0;
  order by = order::random;
  until ends = until::all_end;
};

// The samples of several sources as one: for the shuffle and for all later stages, lanes and ranks,
// they are one list of shards. Lane l of the mix draws from lane l of each source, by a function of
// (seed, epoch, lane). Saves and restores with any number of ranks, but with the same number of
// lanes.
//
// A source with epoch_mode::resample never ends: combined with exact ones it needs `first_ends`.
// Of several exact ones `first_ends` makes epochs of unequal lengths: what a source has left over
// from an epoch is the begin of its next one, which may end it early.
// Throws `failure` (usage): no source, a weight that is none, sources of different ranks or numbers
// of lanes or epochs, and epochs that would never end, or be empty in a lane.
lane_plan<sample> mix(std::vector<mix_source> sources, const mix_options& options = {});

}  // namespace millrace
