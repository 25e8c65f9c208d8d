#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/run_context.h"

namespace millrace {

// Progress of a lane within its epoch. `draw` is the current shard, at byte `offset` after `given`
// of its samples, or the next one if none is open.
struct lane_cursor {
  std::int64_t draw = 0;
  std::int64_t offset = 0;
  std::int64_t given = 0;
  seen_before before = {};  // in a tail, and where a reader of samples goes on
};

// An epoch that was begun with other numbers of lanes: the progress of each, the earliest first.
struct epoch_tail {
  std::int64_t epoch = 0;
  std::vector<std::vector<lane_cursor>> levels;
};

}  // namespace millrace
