#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/run_context.h"

namespace millrace {

// Progress of a lane within its epoch.
struct lane_cursor {
  std::int64_t draw = 0;    // the current shard's, or the next one's if none is open
  std::int64_t offset = 0;  // byte in that shard; 0: its beginning
  std::int64_t given = 0;   // samples of that shard before it
  seen_before before = {};  // in a tail, and where a reader of samples continues
};

// An epoch that was begun with other numbers of lanes: the progress of each, the earliest first.
struct epoch_tail {
  std::int64_t epoch = 0;                        // the number of that epoch
  std::vector<std::vector<lane_cursor>> levels;  // a cursor for each lane, for each number of lanes
};

}  // namespace millrace
