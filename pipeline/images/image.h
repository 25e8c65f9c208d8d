#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/bytes.h"
#include "pipeline/images/view.h"
#include "pipeline/sample.h"

namespace millrace {

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
