#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "pipeline/plan.h"
#include "pipeline/state.h"

namespace millrace {

// What tells a shard from another one of the same name and layout, wherever a copy of it is: a sum
// over the bytes with which a lane has begun to read it. Times of change, inodes and ETags differ
// between copies of one shard, so a state does not go by them.
struct shard_head {
  std::int64_t shard = -1;  // its index in the list
  std::int64_t begin = 0;   // byte at which it was begun
  std::uint32_t crc = 0;    // CRC-32C of the bytes from there on
  std::int64_t bytes = 0;   // so many, at most `most_bytes`; 0: not known

  static constexpr std::size_t most_bytes = 4 << 10;
  static constexpr const char* record = "head";  // in states, of a lane

  bool is_known() const { return bytes > 0; }
  // The bytes with which it begins, of which the first few count.
  void see(std::span<const std::byte> first);
  // A state's record of it: none where it is not known, or where the record makes no sense.
  void put(state& to, const std::string& name) const;
  static shard_head in(const state& from, const std::string& name);

  bool operator==(const shard_head&) const = default;
};

// Reads those bytes again. Fails with `changed`, skippable, where they are others; else as reading
// fails. `lane` outlives the call.
awaitable<result<void>> check_head(lane_context& lane, shard_head expected);

}  // namespace millrace
