#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/memory/bytes.h"

namespace millrace {

// The origin of a sample and its place in the order: enough to read it again. An item of a
// program's own has it as its member `where`.
struct origin {
  std::int64_t lane = 0;    // the lane that read it
  std::int64_t shard = 0;   // index in the list of shards
  std::int64_t offset = 0;  // byte of the sample's first header block in its shard
  std::int64_t epoch = 0;   // counted from 0
  // In the epoch, over all lanes of all ranks: sample i of lane l of L has position i L + l.
  // Augmentation is a function of (seed, epoch, position). Set where lanes are interleaved.
  std::int64_t position = 0;

  // Epoch and position: compares as the order of samples.
  std::pair<std::int64_t, std::int64_t> place() const { return {epoch, position}; }
  bool operator==(const origin&) const = default;
};

// One file of a sample.
struct field {
  std::string extension;  // lower case, without the first dot: "jpg", "seg.png"
  bytes data;             // the whole file
};

// The consecutive members of a shard that share a key, in archive order. Fields are slices of read
// buffers: keeping a sample keeps memory of the budget. From group_by_key() and read_samples():
// examples/keys.cc.
struct sample {
  std::string key;                         // the members' path up to the first dot of the file name
  std::vector<field> fields;               // each extension once
  origin where;                            // enough to read it again
  std::shared_ptr<const std::string> url;  // of its shard; may be null

  // The field with this extension; nullptr if there is none. Valid until `fields` changes.
  const field* find(std::string_view extension) const {
    for (const field& f : fields) {
      if (f.extension == extension) return &f;
    }
    return nullptr;
  }
  // The bytes of all fields.
  std::size_t payload_bytes() const {
    std::size_t sum = 0;
    for (const field& f : fields) sum += f.data.size();
    return sum;
  }
};

// Completes an error that concerns one sample: by its URL, byte and key; makes it skippable.
inline error of_sample(const sample& s, error why) {
  return why.at(s.url ? *s.url : "")
      .offset(static_cast<std::uint64_t>(s.where.offset))
      .key(s.key)
      .skippable();
}

}  // namespace millrace
