#pragma once

#include <cstdint>
#include <string>

#include "pipeline/dealing.h"
#include "pipeline/state.h"

namespace millrace {

// What a shuffle saves beside the samples that it holds.
struct shuffle_record {
  static constexpr const char* name = "shuffle";
  static constexpr std::int64_t unknown = -1;

  std::int64_t position = 0;  // in the random numbers of the epoch
  std::int64_t epoch = 0;
  bool is_draining = false;
  bool has_begun = false;
  bool has_aside = false;             // the last of the samples is not yet among those drawn from
  std::int64_t held_bytes = unknown;  // of the samples

  // Throws `failure` (bad_state) where there is none.
  static shuffle_record in(const state& from, const std::string& id);
  void put(state& to, const std::string& id) const;
  // For other lanes (lane_dealer): each begins its order anew with its part of what all held.
  static void deal(const dealing& what, state& to);
};

}  // namespace millrace
