#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/plan/plan.h"
#include "pipeline/shards/shards.h"

namespace millrace {

// A source of a mix: its samples, including its own shuffle if it has one.
struct mix_source {
  lane_plan<sample> samples;  // a plan of shards()
  double weight = 1;          // how often it is drawn, relative to the others; above 0
};

// Options of mix().
struct mix_options {
  // Rule that chooses the source of a lane's next sample.
  enum class order {
    random,       // drawn by weight
    round_robin,  // each one in turn; weights are ignored
  };
  // When a lane's epoch ends.
  enum class until {
    all_end,     // each source gives its whole epoch; finished ones are skipped
    first_ends,  // with the first source that has finished; the others continue in the next epoch
  };
  std::uint64_t seed = 0;       // of the draws
  order by = order::random;     // the next source
  until ends = until::all_end;  // an epoch
};

// The samples of several sources as one: for the shuffle and all later stages, for lanes and ranks,
// they are one list of shards. Lane l of the mix draws from lane l of each source, by a function of
// (seed, epoch, lane). Saves and restores with any number of ranks, but with the same number of
// lanes.
//
// A source with epoch_mode::resample never ends: combined with exact ones it needs `first_ends`.
// With several exact ones, `first_ends` makes epochs of unequal lengths: what a source has left
// over from an epoch begins its next one, which may end it early.
//
// Throws `failure` (usage) for no sources, weights that are not above 0, sources of different ranks
// or numbers of lanes or epochs, and epochs that would never end, or be empty in a lane. Example:
// docs/from-webdataset.md.
lane_plan<sample> mix(std::vector<mix_source> sources, const mix_options& options = {});

}  // namespace millrace
