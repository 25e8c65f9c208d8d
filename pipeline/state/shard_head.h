#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "pipeline/state/state.h"

namespace millrace {

// Distinguishes a shard from another one of the same name and layout, wherever a copy of it is: a
// checksum over the bytes with which a lane has begun to read it. Times of change, inodes and ETags
// differ between copies of one shard, so a state does not use them.
struct shard_head {
  std::int64_t shard = -1;  // its index in the list
  std::int64_t begin = 0;   // byte at which it was begun
  std::uint32_t crc = 0;    // CRC-32C of the bytes from there on
  std::int64_t bytes = 0;   // their number, at most `most_bytes`; 0: unknown

  static constexpr std::size_t most_bytes = 4 << 10;  // that are summed
  static constexpr const char* record = "head";       // name of a lane's record in states

  // Whether any bytes were seen.
  bool is_known() const { return bytes > 0; }
  // Takes the bytes with which the shard begins, of which the first few count.
  void see(std::span<const std::byte> first);
  // Puts it into a state as the record `name`; nothing if it is unknown.
  void put(state& to, const std::string& name) const;
  // The head in the record `name`; unknown if there is none, or if it makes no sense.
  static shard_head in(const state& from, const std::string& name);

  bool operator==(const shard_head&) const = default;
};

}  // namespace millrace
