#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/plan.h"
#include "pipeline/shards.h"

namespace millrace {

// One of the sources of a mix: its samples, up to and with a shuffle of its own where it has one.
struct mix_source {
  lane_plan<sample> samples;
  double weight = 1;  // how often it is drawn, in proportion to the others
};

struct mix_options {
  // Which source gives a lane's next sample.
  enum class order {
    random,       // drawn by weight
    round_robin,  // each one in turn; weights are not heeded
  };
  // When a lane's epoch ends.
  enum class until {
    all_end,     // each source gives its whole epoch; one that is through is passed over
    first_ends,  // with the first one that is through; the others go on there in the next epoch
  };
  std::uint64_t seed = 0;
  order by = order::random;
  until ends = until::all_end;
};

// The samples of several sources as one: to shuffle, stages, lanes and ranks behind it they are one
// list of shards. Lane l of the mix draws from lane l of each source, by a function of (seed,
// epoch, lane). Saves and restores with any number of ranks, but with the same number of lanes.
//
// A source with epoch_mode::resample never ends: beside exact ones it needs `first_ends`.
// Throws `failure` (usage): no source, a weight that is none, sources of different ranks or numbers
// of lanes or epochs, and epochs that would never end, or be empty in a lane.
lane_plan<sample> mix(std::vector<mix_source> sources, const mix_options& options = {});

// The record that tells a mix apart.
inline constexpr const char* mix_record = "mix";

}  // namespace millrace
