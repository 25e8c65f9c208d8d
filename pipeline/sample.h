#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/bytes.h"
#include "engine/error.h"

namespace millrace {

// The origin of a sample and its place in the order: enough to read it again.
struct origin {
  std::int64_t lane = 0;
  std::int64_t shard = 0;   // index in the list of shards
  std::int64_t offset = 0;  // of the sample's first header block in its shard, in bytes
  std::int64_t epoch = 0;
  // In the epoch, over all ranks: index within the lane x number of lanes + lane. Augmentation is a
  // function of (seed, epoch, position). Set where lanes are interleaved.
  std::int64_t position = 0;

  // In the order of samples.
  std::pair<std::int64_t, std::int64_t> place() const { return {epoch, position}; }
  bool operator==(const origin&) const = default;
};

struct field {
  std::string extension;  // lower case, without the first dot: "jpg", "seg.png"
  bytes data;
};

// The consecutive members of a shard that share a key, in archive order. Fields are slices of read
// buffers: keeping a sample keeps memory of the budget.
struct sample {
  std::string key;
  std::vector<field> fields;
  origin where;
  std::shared_ptr<const std::string> url;

  // nullptr where there is none.
  const field* find(std::string_view extension) const {
    for (const field& f : fields) {
      if (f.extension == extension) return &f;
    }
    return nullptr;
  }
  std::size_t payload_bytes() const {
    std::size_t sum = 0;
    for (const field& f : fields) sum += f.data.size();
    return sum;
  }
};

// An error that is about one sample: with its place, and skippable.
inline error of_sample(const sample& s, error why) {
  return why.at(s.url ? *s.url : "")
      .offset(static_cast<std::uint64_t>(s.where.offset))
      .key(s.key)
      .skippable();
}

}  // namespace millrace
