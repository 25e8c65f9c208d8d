#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "pipeline/state/state.h"

namespace millrace {

// The record of a stage that counts (epochs_of, repeated, slice), on one rank.
struct count_record {
  using place = std::pair<std::int64_t, std::int64_t>;  // in the order
  // Older versions recorded none of these.
  struct items {
    std::int64_t samples = 1;  // in an item, the most
    std::int64_t length = 0;   // of an epoch of the stage's own, in items; 0: it has none
  };

  std::int64_t value = 0;                // the count
  std::int64_t samples_in_front = 0;     // held by this stage and those before it when it saved
  std::int64_t ends_in_front = 0;        // held by the same
  std::int64_t own_ends_in_front = 0;    // stages among them that give ends of their own
  std::int64_t ends_again = 0;           // ends of this stage that have yet to come again
  place last_again{-1, -1};              // samples up to it have yet to come again
  std::int64_t ends_in_front_again = 0;  // ends of earlier stages that come again
  std::vector<place> ends = {};          // where this stage gave its ends
  std::optional<items> of_items = items();
  // As item_count::of_again() makes it; nullopt: of an older version. The default: nothing.
  std::optional<state::record> again = state::record{0, -1};

  // The record with these numbers, of this version or an older one; nullopt if they are not those
  // of such a record. Checks their number, not their ranges.
  static std::optional<count_record> in(const state::record& saved);
  // The numbers of the record.
  state::record of() const;
};

}  // namespace millrace
