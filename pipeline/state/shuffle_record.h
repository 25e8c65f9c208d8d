#pragma once

#include <cstdint>
#include <string>

#include "pipeline/state/dealing.h"
#include "pipeline/state/state.h"

namespace millrace {

// Record of a shuffle, in addition to the samples that it holds.
struct shuffle_record {
  static constexpr const char* name = "shuffle";
  static constexpr std::int64_t unknown = -1;

  std::int64_t position = 0;  // in the random numbers of the epoch
  std::int64_t epoch = 0;
  bool is_draining = false;
  bool has_begun = false;
  bool has_aside = false;             // the last held sample is not yet one of those drawn from
  std::int64_t held_bytes = unknown;  // total size of the held samples

  // Throws `failure` (bad_state) if there is none.
  static shuffle_record in(const state& from, const std::string& id);
  void put(state& to, const std::string& id) const;
  // For another number of lanes (lane_dealer): each lane restarts its order with its part of all
  // held samples.
  static void deal(const dealing& what, state& to);
};

}  // namespace millrace
