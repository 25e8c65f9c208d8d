#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "pipeline/state.h"

namespace millrace {

// Tells a shard from another one of the same name and layout, wherever a copy of it is: a checksum
// of the bytes with which a lane began to read it. Modification times, inodes and ETags differ
// between copies of one shard, so a state does not compare them.
struct shard_head {
  std::int64_t shard = -1;  // its index in the list
  std::int64_t begin = 0;   // the byte at which reading began
  std::uint32_t crc = 0;    // CRC-32C of the bytes from there on
  std::int64_t bytes = 0;   // that `crc` covers, at most `most_bytes`; 0: unknown

  static constexpr std::size_t most_bytes = 4 << 10;
  static constexpr const char* record = "head";  // in states, of a lane

  bool is_known() const { return bytes > 0; }
  // Computes the checksum of the first few of these bytes.
  void see(std::span<const std::byte> first);
  // Reads and writes the record of a state. No record is written for an unknown head; a malformed
  // record reads as unknown.
  void put(state& to, const std::string& name) const;
  static shard_head in(const state& from, const std::string& name);

  bool operator==(const shard_head&) const = default;
};

}  // namespace millrace
