#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/state/shard_head.h"

namespace millrace {

// Facts about the samples before a position that a reader needs to read what follows it.
struct seen_before {
  bool damage = false;     // right before it, skipped by untar_options::resync
  std::int64_t usual = 0;  // fingerprint of the extensions of the last whole sample; 0: none
  // Errors of the shard before this byte were reported, and the consumer continued; 0: none.
  std::int64_t told = 0;

  bool operator==(const seen_before&) const = default;
};

// Progress of a lane within its epoch.
struct lane_cursor {
  std::int64_t draw = 0;    // the current shard's, or the next one's if none is open
  std::int64_t offset = 0;  // byte in that shard; 0: its beginning
  std::int64_t given = 0;   // samples of that shard before it
  seen_before before = {};  // in a tail, and where a reader of samples continues
  // Head of the shard that a saved state was in. Resuming in that shard fails if its head has
  // changed.
  shard_head head = {};
};

// An epoch that was begun with other numbers of lanes: the progress of each, the earliest first.
struct epoch_tail {
  std::int64_t epoch = 0;                        // the number of that epoch
  std::vector<std::vector<lane_cursor>> levels;  // a cursor for each lane, for each number of lanes
};

}  // namespace millrace
