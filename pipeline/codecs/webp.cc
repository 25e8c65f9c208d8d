#include "pipeline/codecs/webp.h"

#include <fmt/format.h>
#include <webp/decode.h>

#include <algorithm>
#include <new>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/host/cpu_time.h"
#include "engine/memory/work_memory.h"
#include "pipeline/codecs/webp_codes.h"
#include "pipeline/pixels/row_sink.h"

namespace millrace {
namespace {

constexpr std::uint8_t gray_of_missing = 128;  // for missing pixels
constexpr int lossless = 2;                    // WebPBitstreamFeatures::format
constexpr std::size_t chunk_header = 8;        // a chunk's name and size

std::uint32_t little_endian(std::span<const std::byte> file, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 4; i-- > 0;) {
    value = value << 8 | std::to_integer<std::uint32_t>(file[at + i]);
  }
  return value;
}

// What is read from a file's chunks.
struct webp_chunks {
  // The pixel chunk: its name, its size, and as much of its contents as there is. libwebp gets only
  // this one: it would take what follows a damaged chunk for a part of it.
  std::span<const std::byte> image;
  exif_orientation orientation;
  // A chunk has no valid name or extends beyond the end that the file states, or the header
  // announces EXIF data that is missing.
  bool are_damaged = false;
};

// Source: WebP container specification, "RIFF File Format" and "Extended File Format": each chunk
// has a name, a size and contents padded to an even size; a first chunk, VP8X, may hold flags.
webp_chunks chunks_in(std::span<const std::byte> file) {
  constexpr std::size_t riff_header = 12;
  constexpr std::size_t before_riff_size = 8;  // not counted in the stated size
  constexpr auto has_exif = std::byte{0x08};
  const std::size_t stated = little_endian(file, 4) + before_riff_size;
  const auto all = file.first(std::min(file.size(), stated));
  const auto is_of_name = [](char c) { return c >= ' ' && c <= '~'; };
  webp_chunks found;
  bool lacks_exif = false;
  bool is_turned = false;
  for (std::size_t at = riff_header; at + chunk_header <= all.size();) {
    const std::string_view name(reinterpret_cast<const char*>(all.data()) + at, 4);
    const std::size_t size = little_endian(all, at + 4);
    const auto chunk = all.subspan(at, std::min(chunk_header + size, all.size() - at));
    const auto content = chunk.subspan(chunk_header);
    const bool is_image = name == "VP8 " || name == "VP8L";
    if (is_image && found.image.empty()) found.image = chunk;
    if (content.size() < size || !std::ranges::all_of(name, is_of_name)) {
      found.are_damaged = true;
      break;
    }
    if (name == "VP8X" && size > 0) lacks_exif = (content[0] & has_exif) != std::byte{};
    if (name == "EXIF" && !is_turned) {
      found.orientation = orientation_of(content);
      is_turned = true;
    }
    at += chunk.size() + size % 2;
  }
  found.are_damaged = found.are_damaged || (lacks_exif && !is_turned);
  return found;
}

const char* text_of(VP8StatusCode code) {
  switch (code) {
    case VP8_STATUS_NOT_ENOUGH_DATA:
    case VP8_STATUS_SUSPENDED:
      return "the file ends before the image";
    case VP8_STATUS_OUT_OF_MEMORY:
      return "libwebp has no memory for it";
    case VP8_STATUS_UNSUPPORTED_FEATURE:
      return "it uses a feature that libwebp does not know";
    default:
      return "the WebP data is damaged";
  }
}

error failed(VP8StatusCode code) {
  return error(errc::bad_image, fmt::format("cannot decode the image: {}", text_of(code)))
      .skippable();
}

// Whether the file is shorter than its header states.
bool is_cut(std::span<const std::byte> file) {
  constexpr std::size_t size_at = 4;
  constexpr std::size_t before = size_at + 4;
  return file.size() < before || file.size() - before < little_endian(file, size_at);
}

// An upper bound for the memory of an image's prefix codes. A group of codes fills five tables of
// 256 entries, and more for codes longer than 8 bits, which cost bits of the file. If the number of
// groups is unknown: each covers a square of at least 4 x 4 pixels and takes at least 20 bits of
// the file, and their numbers have 16 bits.
std::uint64_t code_bytes(const std::optional<webp_codes>& known, std::uint64_t squares,
                         std::uint64_t file_bytes) {
  constexpr std::uint64_t a_group = 5 * 256 * 4 + 600;
  constexpr std::uint64_t further_tables = 15'000;
  constexpr std::uint64_t further_of_a_byte = 512;
  constexpr std::uint64_t caches = 1 << 17;
  const std::uint64_t most = std::min({squares, std::uint64_t{1} << 16, file_bytes * 8 / 20 + 1});
  if (!known) return most * a_group + caches;
  const std::uint64_t further =
      std::min(known->groups * further_tables, file_bytes * further_of_a_byte);
  return known->groups * a_group + further + (known->pixels + known->numbers) * 4 + caches;
}

// An upper bound for what libwebp allocates for an image; it has no hook for allocations, and sizes
// them by these figures alone. Source: libwebp 1.2.4, dec/frame_dec.c (AllocateMemory),
// dec/vp8l_dec.c (AllocateInternalBuffers32b, ReadHuffmanCodesHelper).
std::uint64_t library_bytes(std::uint64_t width, std::uint64_t height,
                            std::span<const std::byte> chunk, bool is_lossless) {
  constexpr std::uint64_t a_column = 512;  // of lossy images: a row of macroblocks, and its edges
  constexpr std::uint64_t rows_ahead = 17;
  if (!is_lossless) return width * a_column;
  const auto known = codes_of_webp(chunk.subspan(chunk_header));
  const std::uint64_t codes =
      code_bytes(known, ((width + 3) / 4) * ((height + 3) / 4), chunk.size());
  return (width * height + width * rows_ahead) * 4 + codes;
}

using incremental = std::unique_ptr<WebPIDecoder, decltype(&WebPIDelete)>;

// The needed pixels with the margin that chroma upsampling reads, starting at even coordinates.
pixel_box with_margin(const pixel_box& needed, int width, int height) {
  constexpr int margin = 2;
  const int left = std::max(0, needed.x - margin) / 2 * 2;
  const int top = std::max(0, needed.y - margin) / 2 * 2;
  const int right = std::min(width, needed.x + needed.width + margin);
  const int bottom = std::min(height, needed.y + needed.height + margin);
  return {left, top, right - left, bottom - top};
}

}  // namespace

struct webp_decoder::impl {
  result<void> decode(std::span<const std::byte> file, const image_options& options,
                      const view_chooser& choose, const pixel_place& place);
  result<void> read_pixels(std::span<const std::byte> chunk, const image_options& options,
                           const pixel_box& region);

  row_sink sink;
  WebPDecoderConfig config{};
  std::vector<std::uint8_t> pixels;  // of the region, RGBA
  int warnings = 0;
};

result<void> webp_decoder::impl::read_pixels(std::span<const std::byte> chunk,
                                             const image_options& options,
                                             const pixel_box& region) {
  const std::size_t stride = static_cast<std::size_t>(region.width) * 4;
  const std::size_t size = stride * static_cast<std::size_t>(region.height);
  // Counted as if all of the image were needed, so that too large an image is reported in every
  // epoch, whatever the crop.
  const auto width = static_cast<std::uint64_t>(config.input.width);
  const auto height = static_cast<std::uint64_t>(config.input.height);
  const auto library = library_bytes(width, height, chunk, config.input.format == lossless);
  if (!take_work_memory(static_cast<std::size_t>(width * height * 4 + library))) {
    return failed(VP8_STATUS_OUT_OF_MEMORY);
  }
  pixels.assign(size + sink.readable_behind(), gray_of_missing);
  config.options.use_cropping = 1;
  config.options.crop_left = region.x;
  config.options.crop_top = region.y;
  config.options.crop_width = region.width;
  config.options.crop_height = region.height;
  config.output.colorspace = MODE_RGBA;
  config.output.is_external_memory = 1;
  config.output.u.RGBA = {.rgba = pixels.data(), .stride = static_cast<int>(stride), .size = size};
  const incremental decoder(WebPIDecode(nullptr, 0, &config), WebPIDelete);
  if (decoder == nullptr) throw std::bad_alloc();
  const double deadline = thread_cpu_seconds() + options.limits.max_cpu_seconds;
  const auto* data = reinterpret_cast<const std::uint8_t*>(chunk.data());
  constexpr std::size_t portion = 256 << 10;  // between checks of the CPU time
  VP8StatusCode status = VP8_STATUS_SUSPENDED;
  for (std::size_t end = 0; end < chunk.size() && status == VP8_STATUS_SUSPENDED;) {
    end = std::min(chunk.size(), end + portion);
    status = WebPIUpdate(decoder.get(), data, end);
    if (thread_cpu_seconds() > deadline) {
      return error(errc::too_large, "cannot decode the image: it takes too long").skippable();
    }
  }
  if (status == VP8_STATUS_OUT_OF_MEMORY) throw std::bad_alloc();  // not the file's fault
  const bool ended_early = status == VP8_STATUS_SUSPENDED || status == VP8_STATUS_NOT_ENOUGH_DATA;
  if (status != VP8_STATUS_OK && !(ended_early && options.fill_truncated)) return failed(status);
  if (ended_early) warnings = 1;
  return {};
}

webp_decoder::webp_decoder() : impl_(std::make_unique<impl>()) {}
webp_decoder::~webp_decoder() = default;

int webp_decoder::warnings() const {
  return impl_->warnings;
}

result<void> webp_decoder::decode(std::span<const std::byte> file, const image_options& options,
                                  const view_chooser& choose, const pixel_place& place) {
  return metered([&] {
    auto decoded = impl_->decode(file, options, choose, place);
    drop_large(impl_->pixels);
    return decoded;
  });
}

result<void> webp_decoder::impl::decode(std::span<const std::byte> file,
                                        const image_options& options, const view_chooser& choose,
                                        const pixel_place& place) {
  warnings = 0;
  if (WebPInitDecoderConfig(&config) == 0) {
    throw failure(error(errc::internal, "libwebp is of another version than its headers"));
  }
  const auto* data = reinterpret_cast<const std::uint8_t*>(file.data());
  const auto found = WebPGetFeatures(data, file.size(), &config.input);
  if (found != VP8_STATUS_OK) return failed(found);
  // Decided by the header alone, so that it is the same in every epoch, whatever the view needs.
  warnings = is_cut(file) ? 1 : 0;
  if (warnings > 0 && !options.fill_truncated) return failed(VP8_STATUS_NOT_ENOUGH_DATA);
  const int width = config.input.width;
  const int height = config.input.height;
  if (config.input.has_animation != 0) {
    return error(errc::bad_image, "an animated WebP: only still images are decoded").skippable();
  }
  const auto count = static_cast<std::uint64_t>(width) * static_cast<std::uint64_t>(height);
  if (count > options.limits.max_pixels || count * 4 > options.limits.max_held_bytes) {
    return error(errc::too_large, fmt::format("a WebP of {} x {} pixels (at most {} in all)", width,
                                              height, options.limits.max_pixels))
        .skippable();
  }
  const webp_chunks chunks = chunks_in(file);
  if (chunks.image.empty()) return failed(VP8_STATUS_BITSTREAM_ERROR);
  if (chunks.are_damaged && warnings == 0) {
    if (!options.lenient) return failed(VP8_STATUS_BITSTREAM_ERROR);
    warnings = 1;
  }
  const exif_orientation turned = options.orient ? chunks.orientation : exif_orientation{};
  sink.begin(choose, place, options, turned, width, height);
  const pixel_box needed = sink.needed();
  // From a truncated lossless image, libwebp outputs as many rows as it has, whatever the region.
  const bool is_whole = warnings == 0 || config.input.format != lossless;
  const pixel_box region =
      is_whole ? with_margin(needed, width, height) : pixel_box{0, 0, width, height};
  if (auto read = read_pixels(chunks.image, options, region); !read) return read;
  const std::size_t stride = static_cast<std::size_t>(region.width) * 4;
  const std::uint8_t* row = pixels.data() + static_cast<std::size_t>(needed.y - region.y) * stride +
                            static_cast<std::size_t>(needed.x - region.x) * 4;
  for (int y = 0; y < needed.height; ++y) sink.add_row(row + static_cast<std::size_t>(y) * stride);
  sink.finish();
  return {};
}

}  // namespace millrace
