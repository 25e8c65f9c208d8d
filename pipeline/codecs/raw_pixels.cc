#include "pipeline/codecs/raw_pixels.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>

#include "pipeline/pixels/row_sink.h"
#include "pipeline/samples/npy.h"

namespace millrace {
namespace {

// The layout of the pixels in a file: channel c of pixel (x, y) is byte begin + y * row + x *
// column + c * channel.
struct layout {
  std::int64_t width = 0;
  std::int64_t height = 0;
  std::size_t begin = 0;
  std::size_t row = 0;
  std::size_t column = 0;
  std::size_t channel = 0;
};

error bad(std::string what) {
  return error(errc::bad_image, std::move(what)).skippable();
}

bool are_sides(std::int64_t width, std::int64_t height) {
  constexpr std::int64_t most = 1 << 20;
  return width >= 1 && height >= 1 && width <= most && height <= most;
}

layout interleaved_pixels(std::int64_t width, std::int64_t height, std::size_t channels,
                          std::size_t begin) {
  const auto w = static_cast<std::size_t>(width);
  return {.width = width,
          .height = height,
          .begin = begin,
          .row = w * channels,
          .column = channels,
          .channel = channels == 3 ? 1U : 0U};
}

result<layout> npy_layout(std::span<const std::byte> file) {
  const auto header = read_npy_header(file);
  if (!header) return bad(fmt::format("the array is not an image: {}", header.error().what()));
  const auto& shape = header->shape;
  const bool colors_last = shape.size() == 3 && (shape[2] == 3 || shape[2] == 1);
  const bool colors_first = shape.size() == 3 && !colors_last && shape[0] == 3;
  if (header->type != "u1" || !(shape.size() == 2 || colors_last || colors_first)) {
    return bad(
        fmt::format("an array of type {} and shape ({}): an image is of type u1, and of shape "
                    "(height, width, 3), (height, width) or (3, height, width)",
                    header->type, fmt::join(shape, ", ")));
  }
  if (!colors_first) {
    const std::size_t channels = colors_last ? static_cast<std::size_t>(shape[2]) : 1;
    if (!are_sides(shape[1], shape[0])) return bad("an array without pixels");
    return interleaved_pixels(shape[1], shape[0], channels, header->size);
  }
  if (!are_sides(shape[2], shape[1])) return bad("an array without pixels");
  const auto width = static_cast<std::size_t>(shape[2]);
  return layout{.width = shape[2],
                .height = shape[1],
                .begin = header->size,
                .row = width,
                .column = 1,
                .channel = width * static_cast<std::size_t>(shape[1])};
}

// Source: Netpbm, ppm(5) and pgm(5).
result<layout> pnm_layout(std::span<const std::byte> file) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  std::size_t at = 2;
  const auto is_space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  const auto number = [&] {
    for (; at < text.size() && (is_space(text[at]) || text[at] == '#'); ++at) {
      if (text[at] == '#') at = std::min(text.find('\n', at), text.size() - 1);
    }
    std::int64_t value = -1;
    const char* end = text.data() + text.size();
    at = static_cast<std::size_t>(std::from_chars(text.data() + at, end, value).ptr - text.data());
    return value;
  };
  const std::int64_t width = number();
  const std::int64_t height = number();
  const std::int64_t most = number();
  if (!are_sides(width, height) || at >= text.size() || !is_space(text[at])) {
    return bad("the header of the PNM file is not well formed");
  }
  if (most != 255)
    return bad(fmt::format("a PNM file of values up to {}: only 255 is supported", most));
  return interleaved_pixels(width, height, text[1] == '6' ? 3 : 1, at + 1);
}

result<layout> layout_of(std::span<const std::byte> file, const image_options& o) {
  if (o.raw_width > 0) return interleaved_pixels(o.raw_width, o.raw_height, 3, 0);
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  return text.starts_with(npy_magic) ? npy_layout(file) : pnm_layout(file);
}

// Converts the pixels [from, from + count) of one row to RGBX.
void widen(const std::uint8_t* from, std::size_t count, const layout& l, std::uint8_t* to) {
  for (std::size_t x = 0; x < count; ++x) {
    for (std::size_t c = 0; c < 3; ++c) to[x * 4 + c] = from[x * l.column + c * l.channel];
  }
}

}  // namespace

raw_pixels::raw_pixels() : sink_(std::make_unique<row_sink>()) {}
raw_pixels::~raw_pixels() = default;

result<void> raw_pixels::decode(std::span<const std::byte> file, const image_options& options,
                                const view_chooser& choose, const pixel_place& place) {
  const auto l = layout_of(file, options);
  if (!l) return l.error();
  const auto pixels = static_cast<std::uint64_t>(l->width) * static_cast<std::uint64_t>(l->height);
  if (pixels > options.limits.max_pixels) {
    return error(errc::too_large, fmt::format("an image of {} x {} pixels (at most {} in all)",
                                              l->width, l->height, options.limits.max_pixels))
        .skippable();
  }
  const std::uint64_t channels = l->channel == 0 ? 1 : 3;
  const std::uint64_t size = pixels * channels;
  const bool is_bare = options.raw_width > 0;
  if (file.size() - std::min(l->begin, file.size()) < size || (is_bare && file.size() != size)) {
    return bad(fmt::format("{} x {} pixels of {} bytes are {} bytes, where the file has {}",
                           l->width, l->height, channels, size, file.size() - l->begin));
  }
  sink_->begin(choose, place, options, {}, static_cast<int>(l->width), static_cast<int>(l->height));
  const pixel_box needed = sink_->needed();
  const auto count = static_cast<std::size_t>(needed.width);
  const std::size_t stride = count * 4 + sink_->readable_behind();
  if (lines_.size() < stride * 2) lines_.resize(stride * 2);
  const auto* first = reinterpret_cast<const std::uint8_t*>(file.data()) + l->begin +
                      static_cast<std::size_t>(needed.x) * l->column;
  for (int y = 0; y < needed.height; ++y) {
    std::uint8_t* line = lines_.data() + static_cast<std::size_t>(y % 2) * stride;
    widen(first + static_cast<std::size_t>(needed.y + y) * l->row, count, *l, line);
    sink_->add_row(line);
  }
  sink_->finish();
  return {};
}

}  // namespace millrace
