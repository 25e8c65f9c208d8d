#pragma once

#include <millrace/millrace.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace millrace::python {

// The pixels of a field: RGB, height x width x 3 bytes.
struct pixels_of_field {
  std::size_t field = 0;  // its number in the sample
  std::size_t height = 0;
  std::size_t width = 0;
  std::unique_ptr<std::uint8_t[]> pixels;  // not zeroed first: decoding writes all of them
  std::size_t bytes() const { return height * width * 3; }
};

// A sample, and the images among its fields.
struct decoded_sample {
  sample s;
  std::vector<pixels_of_field> images;
  std::string key;                         // the sample's; so the rest
  origin where;                            // a resumed run finds the sample by it
  std::shared_ptr<const std::string> url;  // of its shard
};

// The sample without a decoded image. Fails, skippable, with duplicate_field for a field whose name
// dicts have for something else: "__key__" and "__url__".
result<decoded_sample> undecoded(sample s);
// Decodes every field that is, by its extension, an image of a format that the engine decodes,
// whole; `orient`: turned as EXIF demands. Fails, naming the sample, with bad_image or too_large,
// both skippable. Any thread.
result<decoded_sample> with_images(sample s, bool orient);

// Copies the bytes of a sample's fields into memory of its own, as an item_keeper of run.h.
std::optional<std::size_t> with_own_bytes(decoded_sample& item);

}  // namespace millrace::python
