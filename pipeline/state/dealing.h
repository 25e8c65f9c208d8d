#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/state/lane_names.h"
#include "pipeline/state/state.h"

namespace millrace {

// A state of a job whose rest is distributed to another number of lanes (pipeline/shards/redeal.h).
struct dealing {
  const state& from;              // of all lanes, 0 to `lanes_before` - 1
  std::int64_t epoch = 0;         // the one to be continued; later epochs start from the beginning
  std::int64_t lanes_before = 0;  // of which it is a state
  std::int64_t lanes = 0;         // from now on
};

// A record that a stage saves of each lane, and how it is made for other lanes.
struct lane_dealer {
  std::string record;  // the name, as lane_context::id() takes it
  // Puts the records of all new lanes, and what they hold, into `to`. Pure. nullptr: the record
  // cannot be made for other lanes, and a state with it resumes with its own number only.
  std::function<void(const dealing& what, state& to)> deal;
};

// Those of these samples that are in the epoch to be continued, by the new lane that gets each of
// them: in turns.
std::vector<std::vector<origin>> dealt(const dealing& what, std::vector<origin> held);
// The same of the samples that a stage holds under this name in all lanes of `what.from`.
std::vector<std::vector<origin>> dealt_held(const dealing& what, std::string_view record);

}  // namespace millrace
