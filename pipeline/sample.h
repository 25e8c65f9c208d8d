#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/bytes.h"
#include "engine/error.h"
#include "pipeline/images/view.h"

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

// One file of an archive.
struct tar_member {
  std::string name;
  bytes data;
  std::int64_t offset = 0;  // of its first header block, extension headers included
  std::int64_t draw = 0;    // which shard of its lane's epoch this is, counted from 0
  std::int64_t number = 0;  // which sample of that draw it belongs to, counted from 0
  std::int64_t shard = 0;
  std::int64_t epoch = 0;
  bool ends_archive = false;  // no file: what follows in the shard is of other samples
  bool after_damage = false;  // the first one after damage within its shard
  bool copied = false;        // `data` has memory of its own rather than a slice of a read buffer
  std::shared_ptr<const std::string> url;
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

// In the place of pixels, a slot may hold the file of a JPEG that the device is to decode.
struct encoded_image {
  std::size_t bytes = 0;
  view_of_image view;
};

// A decoded image in its slot of a batch's block.
struct image {
  std::shared_ptr<block> pixels;  // slots of height x width x 3 bytes, RGB
  std::size_t slot = 0;
  int height = 0;
  int width = 0;
  std::int64_t label = -1;
  std::optional<encoded_image> encoded;
  std::string key;
  origin where;
  std::shared_ptr<const std::string> url;  // of its shard

  std::size_t bytes_per_image() const {
    return static_cast<std::size_t>(height) * static_cast<std::size_t>(width) * 3;
  }
};

// A batch in host memory: uint8, NHWC, RGB, contiguous. Memory of the budget while it lives.
struct host_batch {
  std::shared_ptr<block> pixels;
  int height = 0;
  int width = 0;
  std::int64_t epoch = 0;
  std::vector<std::int64_t> labels;
  // Of mixed images (images/mixing.h): what they were mixed with, and the share of what they were.
  std::vector<std::int64_t> other_labels;
  double share = 1;
  // Images that the device is to decode, by their index (decode_options.encoded_share).
  std::vector<std::pair<std::size_t, encoded_image>> encoded;
  std::vector<std::string> keys;
  std::vector<origin> origins;

  std::size_t size() const { return labels.size(); }
  const std::uint8_t* data() const { return reinterpret_cast<const std::uint8_t*>(pixels->data); }
  std::size_t payload_bytes() const {
    return size() * static_cast<std::size_t>(height) * static_cast<std::size_t>(width) * 3;
  }
};

}  // namespace millrace
