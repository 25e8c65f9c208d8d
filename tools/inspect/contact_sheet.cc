#include "tools/inspect/contact_sheet.h"

#include <algorithm>

#include "engine/host/asked_to_end.h"
#include "pipeline/codecs/png.h"

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

std::size_t contact_sheet::bytes_of(int tiles, int side) {
  const auto pixels = static_cast<std::size_t>(side) * static_cast<std::size_t>(side);
  return static_cast<std::size_t>(tiles) * pixels * 3;
}

void contact_sheet::write_png(const std::function<void(std::span<const std::byte>)>& take) const {
  const int pitch = decode_.size + gap;
  const int columns = std::min(columns_, std::max(1, tiles()));
  const int rows = std::max(1, (tiles() + columns - 1) / columns);
  const int width = columns * pitch + gap;
  const int height = rows * pitch + gap;
  const std::size_t row_bytes = static_cast<std::size_t>(decode_.size) * 3;
  std::vector<std::uint8_t> row(static_cast<std::size_t>(width) * 3);
  const auto draw = [&](int y) -> std::span<const std::uint8_t> {
    if (asked_to_end) {
      throw failure(error(errc::stopped, "no contact sheet was written"));
    }
    std::ranges::fill(row, background);
    const int within = y % pitch - gap;  // below 0: between two rows of tiles
    const int first = y / pitch * columns;
    for (int i = first; within >= 0 && i < std::min(first + columns, tiles()); ++i) {
      const auto* from =
          tiles_[static_cast<std::size_t>(i)].data() + static_cast<std::size_t>(within) * row_bytes;
      const auto left = static_cast<std::size_t>(gap + (i - first) * pitch) * 3;
      std::copy_n(from, row_bytes, row.data() + left);
    }
    return row;
  };
  encode_png(width, height, draw, take);
}

}  // namespace millrace
