#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/state.h"

namespace millrace {

// A state of a job whose rest is distributed to another number of lanes (pipeline/redeal.h).
struct dealing {
  const state& from;       // of all lanes, 0 to `lanes_before` - 1
  std::int64_t epoch = 0;  // the one to be continued; later epochs start from the beginning
  std::int64_t lanes_before = 0;
  std::int64_t lanes = 0;  // from now on
};

// A record that a stage saves of each lane, and how it is made for other lanes.
struct lane_dealer {
  std::string record;  // the name, as lane_context::id() takes it
  // Puts the records of all lanes from now on, and what they hold. Pure. nullptr: it cannot be made
  // for others.
  std::function<void(const dealing& what, state& to)> deal;
};

// Throws `failure` (usage) if a stage with `back` records follows stages with `front` ones, and
// both save one of the same name: each would overwrite the other's.
void check_records_apart(const std::vector<lane_dealer>& front,
                         const std::vector<lane_dealer>& back, const std::string& stage);

// The name of a lane's record, as lane_context::id() of a plan without mixes.
std::string lane_record_name(std::int64_t lane, std::string_view record);

// What a stage holds by that name in all lanes of `what.from`, in the epoch that goes on, by the
// lane that each sample is given to now: in turns.
std::vector<std::vector<origin>> dealt_held(const dealing& what, std::string_view record);

}  // namespace millrace
