#pragma once

#include <cstdint>
#include <string>

namespace millrace {

// What those who write shards have in common.

// Whether a shard is to end before the next sample, as WebDataset's ShardWriter has it: when it has
// as many samples, or as much payload, as it may. One without a sample never is.
inline bool is_full_shard(std::uint64_t samples, std::uint64_t payload_bytes,
                          std::int64_t most_count, std::uint64_t most_bytes) {
  return samples > 0 &&
         (samples >= static_cast<std::uint64_t>(most_count) || payload_bytes >= most_bytes);
}

// Whether the path is that of a device or a pipe, whose reader may come to it only when it has read
// the one before.
bool is_device_path(const std::string& path);

}  // namespace millrace
