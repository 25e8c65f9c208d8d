#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/result.h"
#include "pipeline/pixels/options.h"

namespace millrace {

struct image_codecs;  // a decoder of each format; in image_decoder.cc

// A format of images: one that is decoded, or one that is only recognised, to be refused by name.
struct image_format {
  std::string_view name;             // in messages: "PNG"; of a format that is refused, "a GIF"
  std::string_view extensions = {};  // of its files, in lower case, joined by ';'
  // The first bytes of its files are one of these; '.' stands for any byte.
  std::array<std::string_view, 4> starts = {};
  bool is_decoded = false;  // otherwise it is refused
};
// All formats, those that are decoded first. Lives as long as the process.
std::span<const image_format> image_formats();
// The extensions of the formats that are decoded, joined by ';'. Of a sample's images, the one
// whose extension is first in the list is decoded (decode_options::images).
std::string decoded_extensions();
// Whether files with this extension are images, also of a format that is refused. In lower case,
// without its dot.
bool is_image_extension(std::string_view extension);
// Whether files with this extension are JPEGs. In lower case, without its dot.
bool is_jpeg_extension(std::string_view extension);

// Decodes images of every kind that millrace takes, told apart by their first bytes, never by their
// names: see image_formats(). Refuses other kinds by name (bad_image).
// One thread; keeps its memory from image to image. Example: examples/masks.cc.
class image_decoder {
 public:
  image_decoder();
  ~image_decoder();
  image_decoder(const image_decoder&) = delete;
  image_decoder& operator=(const image_decoder&) = delete;

  // As jpeg_decoder::decode().
  result<void> decode(std::span<const std::byte> file, const image_options& options,
                      const view_chooser& choose, const pixel_place& place);
  // The number of the decoder's warnings about the last image.
  int warnings() const;

 private:
  std::unique_ptr<image_codecs> codecs_;
};

}  // namespace millrace
