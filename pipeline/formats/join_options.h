#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "pipeline/formats/untar_options.h"

namespace millrace {

// The treatment of a sample that has no companion: no sample of its key in the companion shard, no
// such shard (not_found), or no row in the table.
enum class missing_companion : std::uint8_t {
  error,  // it fails with missing_field or not_found, skippable: names the companion and the key
  skip,   // it is left out and counted (ledger::left_out)
  none,   // it comes without the fields, and is counted (ledger::without_companion)
};

// Options of join().
struct join_options {
  // The treatment of samples without a companion. A companion shard that cannot be read for another
  // reason than not_found, or is damaged, is an error in any case.
  missing_companion missing = missing_companion::error;
  // Patterns of the companion's fields to add (matches_any); empty: all.
  std::string fields = {};
  // Most bytes of samples that a join holds in a lane because it has read them before the main
  // shard asks for them; 0: as the lane's part of a sixteenth of the budget allows. Beyond that
  // they are read again when they are asked for, which is slow: sort the companion like its main
  // shard.
  std::size_t held_bytes = 0;
  // The options by which companion shards are read.
  untar_options untar = {};
};

}  // namespace millrace
