#include "pipeline/tools/contact_sheet.h"

#include <algorithm>

#include "pipeline/images/png.h"

namespace millrace {
namespace {

constexpr int gap = 2;  // pixels between tiles
constexpr std::uint8_t background = 255;

}  // namespace

contact_sheet::contact_sheet(int columns, const decode_options& decode)
    : columns_(columns), decode_(checked(decode)) {}

result<void> contact_sheet::add(const sample& s) {
  const auto side = static_cast<std::size_t>(decode_.size);
  auto& tile = tiles_.emplace_back(side * side * 3);
  const auto done = decoder_.decode(s, decode_, tile.data());
  if (done) return {};
  std::ranges::fill(tile, std::uint8_t{0});
  return done.error();
}

std::vector<std::byte> contact_sheet::png() const {
  const int pitch = decode_.size + gap;
  const int columns = std::min(columns_, std::max(1, tiles()));
  const int rows = std::max(1, (tiles() + columns - 1) / columns);
  const int width = columns * pitch + gap;
  const int height = rows * pitch + gap;
  std::vector<std::uint8_t> sheet(
      static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 3, background);
  const std::size_t row_bytes = static_cast<std::size_t>(decode_.size) * 3;
  for (int i = 0; i < tiles(); ++i) {
    const auto& tile = tiles_[static_cast<std::size_t>(i)];
    const auto left = gap + static_cast<std::size_t>(i % columns) * static_cast<std::size_t>(pitch);
    const auto top = gap + static_cast<std::size_t>(i / columns) * static_cast<std::size_t>(pitch);
    for (std::size_t y = 0; y < static_cast<std::size_t>(decode_.size); ++y) {
      const std::size_t to = ((top + y) * static_cast<std::size_t>(width) + left) * 3;
      std::copy_n(tile.data() + y * row_bytes, row_bytes, sheet.data() + to);
    }
  }
  return encode_png(sheet, width, height);
}

}  // namespace millrace
