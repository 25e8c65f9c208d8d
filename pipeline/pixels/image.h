#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/memory/bytes.h"
#include "pipeline/pixels/view.h"
#include "pipeline/samples/sample.h"

namespace millrace {

// The file of a JPEG that the device is to decode: a slot may hold it instead of pixels.
struct encoded_image {
  std::size_t bytes = 0;  // of the file
  view_of_image view;     // the part that becomes the output
};

// Bytes of a block for `images` images of `bytes` each. Behind their slots there is room for two
// labels each, so that a device can get all in one copy.
constexpr std::size_t image_block_bytes(std::size_t bytes, std::size_t images) {
  constexpr std::size_t labels = 2 * sizeof(std::int64_t);
  return images * (bytes + labels) + alignof(std::int64_t);
}

// A decoded image in its slot of a batch's block. Keeps memory of the budget while it lives.
struct image {
  std::shared_ptr<block> pixels;           // slots of height x width x 3 bytes, RGB
  std::size_t slot = 0;                    // begins at slot x bytes_per_image() of the block
  int height = 0;                          // in pixels
  int width = 0;                           // in pixels
  std::int64_t label = -1;                 // the class; -1: none
  std::optional<encoded_image> encoded;    // set: the slot holds a file, and no pixels yet
  std::string key;                         // of its sample
  origin where;                            // its sample's
  std::shared_ptr<const std::string> url;  // of its shard

  // height x width x 3.
  std::size_t bytes_per_image() const {
    return static_cast<std::size_t>(height) * static_cast<std::size_t>(width) * 3;
  }
};

// A batch in host memory: uint8, NHWC, RGB, contiguous. Keeps memory of the budget while it lives.
// Image i has the i-th label, key and origin.
struct host_batch {
  std::shared_ptr<block> pixels;     // image_block_bytes() of a full batch, or more
  int height = 0;                    // of each image in pixels
  int width = 0;                     // of each image in pixels
  std::int64_t epoch = 0;            // of its first image
  std::vector<std::int64_t> labels;  // classes; -1: none
  // Labels of the images mixed in by mix_images; empty if images are not mixed.
  std::vector<std::int64_t> other_labels;
  double share = 1;  // of each mixed image, what is left of the image itself
  // Images that the device is to decode, by their index (decode_options::encoded_share).
  std::vector<std::pair<std::size_t, encoded_image>> encoded;
  std::vector<std::string> keys;  // of the samples
  std::vector<origin> origins;    // of the samples

  // The number of images.
  std::size_t size() const { return labels.size(); }
  // The first byte of the first image. Valid while the batch or its block lives.
  const std::uint8_t* data() const { return reinterpret_cast<const std::uint8_t*>(pixels->data); }
  // size() x height x width x 3.
  std::size_t payload_bytes() const {
    return size() * static_cast<std::size_t>(height) * static_cast<std::size_t>(width) * 3;
  }
};

}  // namespace millrace
