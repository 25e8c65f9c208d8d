#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "pipeline/state/state.h"

namespace millrace {

// The record of on_error() on one rank, skipped_record: the samples that it has counted.
struct skip_counts {
  std::int64_t failed = 0;    // skipped or lost
  std::int64_t in_a_row = 0;  // of those, since the last sample that passed
  std::int64_t passed = 0;

  // Nullopt if these are not the numbers of such a record.
  static std::optional<skip_counts> in(const state::record& saved);
  // The numbers of the record.
  state::record of() const { return {failed, in_a_row, passed}; }
};

// The record next to it, lost_record: by what the samples of wholly lost shards are estimated in
// the current epoch, and which samples have been counted already.
struct lost_shards {
  using place = std::array<std::int64_t, 4>;  // epoch, lane, shard, offset

  std::int64_t passed_of_read = 0;      // samples that passed, of the shards in `read`
  std::int64_t errors = 0;              // of the shards in `lost`
  std::int64_t pending_in_front = 0;    // pending samples that belong to earlier stages
  std::vector<std::int64_t> read = {};  // first shards that gave a sample, sorted
  std::vector<place> again = {};        // counted already, and to come again
  std::vector<std::int64_t> lost = {};  // fingerprints of shards that gave no sample, sorted

  // Nullopt if these are not the numbers of such a record.
  static std::optional<lost_shards> in(const state::record& saved);
  // The numbers of the record.
  state::record of() const;
};

}  // namespace millrace
