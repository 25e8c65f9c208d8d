#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "pipeline/images/sample_decoder.h"

namespace millrace {

// Small pictures of samples, side by side, to look at. One thread.
class contact_sheet {
 public:
  // `decode.size` is a tile's side in pixels.
  contact_sheet(int columns, const decode_options& decode);
  // The sample's picture becomes the next tile. Fails like sample_decoder::decode(); the tile is
  // then plain.
  result<void> add(const sample& s);
  int tiles() const { return static_cast<int>(tiles_.size()); }
  // Rows of tiles in the order in which they came, as a PNG, piece by piece. Beside the tiles it
  // holds a few rows of pixels. Throws `failure` (stopped) where the program is asked to end
  // meanwhile, and what `take` throws.
  void write_png(const std::function<void(std::span<const std::byte>)>& take) const;

  // The bytes that so many tiles take.
  static std::size_t bytes_of(int tiles, int side);

 private:
  int columns_;
  decode_options decode_;
  sample_decoder decoder_;
  std::vector<std::vector<std::uint8_t>> tiles_;
};

}  // namespace millrace
