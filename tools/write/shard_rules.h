#pragma once

#include <cstdint>
#include <string>

namespace millrace {

// Rules that all writers of shards share.

// Whether a shard ends before the next sample: it has `most_count` samples or `most_bytes` of
// payload, and at least one sample. As WebDataset's ShardWriter does.
inline bool is_full_shard(std::uint64_t samples, std::uint64_t payload_bytes,
                          std::int64_t most_count, std::uint64_t most_bytes) {
  return samples > 0 &&
         (samples >= static_cast<std::uint64_t>(most_count) || payload_bytes >= most_bytes);
}

// Whether the path is a device or a pipe. Its reader may not open it before it has read the shard
// before this one.
bool is_device_path(const std::string& path);

}  // namespace millrace
