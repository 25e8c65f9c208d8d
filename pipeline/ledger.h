#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/error.h"

namespace millrace {

// Every sample ends in exactly one of: delivered, skipped (with the kind of its error), dropped
// (whole, but in a batch that the end of an epoch cut short), or lost: with an index, what it says
// of a lane's epoch beyond what came and what failed; without, what on_error (on_error.h) takes a
// shard that cannot be opened to hold. Written on the spine; a snapshot is a copy.
struct ledger {
  std::uint64_t delivered = 0;
  std::uint64_t dropped = 0;
  std::uint64_t lost = 0;
  std::uint64_t damaged = 0;  // of the images that came, those whose decoder warned of their data
  std::map<errc, std::uint64_t> skipped;
  // The same for each epoch that is over, as on_error saw it: what came, and what was skipped.
  struct epoch {
    std::uint64_t passed = 0;
    std::map<errc, std::uint64_t> skipped = {};
  };
  std::vector<epoch> epochs;
  std::uint64_t lost_bytes = 0;   // of damaged shards, skipped on the way to a valid header
  std::uint64_t not_files = 0;    // links and devices in archives
  std::uint64_t without_key = 0;  // files whose names have no extension: of no sample
  std::uint64_t meta_files = 0;   // named __x__, or below a folder of such a name: of no sample
  std::vector<std::string> first_skipped;  // messages, the first max_listed of them

  static constexpr std::size_t max_listed = 100;

  std::uint64_t skipped_in_all() const {
    std::uint64_t sum = 0;
    for (const auto& [kind, count] : skipped) sum += count;
    return sum;
  }
  // "delivered 4912, skipped 3 (bad_image 2, truncated 1), dropped 8, lost 40".
  std::string summary() const;
};

}  // namespace millrace
