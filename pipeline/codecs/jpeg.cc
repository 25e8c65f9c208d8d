#include "pipeline/codecs/jpeg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <new>
#include <optional>
#include <string_view>

#include "engine/host/cpu_time.h"
#include "engine/memory/work_memory.h"
#include "pipeline/codecs/jpeg_errors.h"
#include "pipeline/codecs/jpeg_headers.h"
#include "pipeline/codecs/jpeg_huffman.h"
#include "pipeline/codecs/jpeg_runs.h"
#include "pipeline/pixels/row_sink.h"

namespace millrace {
namespace {

using libjpeg::coefficient_bytes;
using libjpeg::effort_limit;
using libjpeg::error_handler;
using libjpeg::guarded;
using libjpeg::lacks_component;
using libjpeg::lacks_scans;

// Memory that decoding takes, in the library and here: coefficients if there are several scans, and
// rows. Rows: up to four components of two rows of MCUs with their context above and below, before
// and after upsampling. Source: libjpeg-turbo, jdmainct.c and jdsample.c.
std::uint64_t working_bytes(const jpeg_decompress_struct& c, bool has_several_scans) {
  constexpr std::uint64_t bytes_of_a_column = 256;
  return c.image_width * bytes_of_a_column + (has_several_scans ? coefficient_bytes(c) : 0);
}

error may_be_preview() {
  return error(errc::bad_image,
               "cannot decode the image: bytes before it belong to no segment, and another "
               "image follows it: the headers are damaged, and this is a preview")
      .skippable();
}

// Whether an end marker, or something that looks like one, follows the headers. If not, the whole
// image is decoded whatever the view needs, so that a truncated file is reported in every epoch.
bool has_end(std::span<const std::byte> file, const jpeg_headers& headers) {
  constexpr std::string_view end = "\xFF\xD9";
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  const auto found = text.rfind(end);
  return found != text.npos && headers.runs.scan_at > 0 && found >= headers.runs.scan_at;
}

}  // namespace

struct jpeg_decoder::impl {
  impl() { create(); }
  ~impl() { jpeg_destroy_decompress(&c); }

  error failed() const {
    const int code = handler.base.msg_code;
    const char* known = code == JERR_SOF_UNSUPPORTED ? " (a lossless or hierarchical JPEG)"
                        : code == JERR_BAD_PRECISION ? " (12-bit JPEGs are not decoded)"
                                                     : "";
    return error(handler.kind, fmt::format("cannot decode the image: {}{}", handler.message, known))
        .skippable();
  }
  error too_large() const {
    return error(errc::too_large, fmt::format("an image of {} x {} pixels (at most {} in all)",
                                              c.image_width, c.image_height, limits.max_pixels))
        .skippable();
  }

  void create();
  void end_image();
  void tell_truncated();
  void forget_tables();
  void begin(const image_options& options);
  result<void> read_header(std::span<const std::byte> file);
  result<void> decode(std::span<const std::byte> file, const image_options& options,
                      const view_chooser& choose, const pixel_place& place);
  result<void> read_pixels(const pixel_box& origin, bool fast, bool own_huffman);
  result<void> decode_file(std::span<const std::byte> file, const image_options& options,
                           bool own_huffman, const view_chooser& choose, const pixel_place& place);
  bool decode_runs(std::span<const std::byte> file, const image_options& options);
  std::array<std::uint8_t*, 2> two_lines(std::size_t size);
  void to_rgbx(std::uint8_t* line, std::size_t width) const;

  image_limits limits;
  jpeg_decompress_struct c{};
  error_handler handler{};
  effort_limit effort{};
  jpeg_headers headers;
  joined_runs joined;
  jpeg_huffman huffman;
  bool is_cut = false;      // the file has no end marker
  std::size_t counted = 0;  // bytes taken from work memory
  row_sink sink;
  std::vector<std::uint8_t> lines;  // two rows as libjpeg outputs them
};

void jpeg_decoder::impl::create() {
  c.err = libjpeg::set_up(handler);
  if (!guarded(handler, [&] { jpeg_create_decompress(&c); })) {
    jpeg_destroy_decompress(&c);
    throw std::bad_alloc();
  }
  libjpeg::watch_runs(c);
  effort.watch(c);
}

// Ends an image early, with rows left, so that the library object can be reused. The library keeps
// pointers into this image's memory, and jpeg_skip_scanlines() writes through those that the next
// image does not set. They must be null, not freed. Source: libjpeg-turbo, jdapistd.c,
// read_and_discard_scanlines().
void jpeg_decoder::impl::end_image() {
  jpeg_abort_decompress(&c);
  c.cconvert = nullptr;
  c.cquantize = nullptr;
}

// Emits the library's warning for a premature end of the file. Called within guarded().
void jpeg_decoder::impl::tell_truncated() {
  c.err->msg_code = JWRN_JPEG_EOF;
  c.err->emit_message(reinterpret_cast<j_common_ptr>(&c), -1);
}

// The library keeps tables from file to file, for streams that define them once. A file that lacks
// its own must fail here, whatever was decoded before it.
void jpeg_decoder::impl::forget_tables() {
  std::uint32_t there = 0;
  for (unsigned i = 0; i < 4; ++i) {
    if (c.dc_huff_tbl_ptrs[i] != nullptr) there |= 1U << i;
    if (c.ac_huff_tbl_ptrs[i] != nullptr) there |= 16U << i;
    if (c.quant_tbl_ptrs[i] != nullptr) there |= 256U << i;
  }
  if ((there & ~headers.tables) == 0) return;
  jpeg_destroy_decompress(&c);
  create();
}

void jpeg_decoder::impl::begin(const image_options& options) {
  if (c.mem == nullptr) create();  // creating it failed for lack of memory
  end_image();                     // an exception may have left an image open
  limits = options.limits;
  handler.lenient = options.lenient;
  handler.fill_truncated = options.fill_truncated;
  counted = 0;
  effort.begin(limits);
}

result<void> jpeg_decoder::impl::read_header(std::span<const std::byte> file) {
  handler.truncated = false;
  handler.no_memory = false;
  handler.warnings = 0;
  if (file.empty()) return error(errc::bad_image, "the image has no bytes").skippable();
  const bool ok = guarded(handler, [&] {
    jpeg_mem_src(&c, reinterpret_cast<const unsigned char*>(file.data()), file.size());
    jpeg_read_header(&c, TRUE);
  });
  if (!ok) return failed();
  const std::uint64_t pixels = std::uint64_t{c.image_width} * c.image_height;
  if (pixels > limits.max_pixels) return too_large();
  const bool has_several_scans = jpeg_has_multiple_scans(&c) != 0;
  const std::uint64_t working = working_bytes(c, has_several_scans);
  // Replaces what an earlier attempt at this image took (by runs, or with our Huffman decoder).
  give_work_memory(std::exchange(counted, static_cast<std::size_t>(working)));
  const bool fits = !has_several_scans || coefficient_bytes(c) <= limits.max_held_bytes;
  if (!fits || !take_work_memory(counted)) {
    return error(errc::too_large, fmt::format("{} image of {} x {} pixels",
                                              has_several_scans ? "a progressive" : "an",
                                              c.image_width, c.image_height))
        .skippable();
  }
  const bool is_cmyk = c.jpeg_color_space == JCS_CMYK || c.jpeg_color_space == JCS_YCCK;
  c.out_color_space = is_cmyk ? JCS_CMYK : JCS_EXT_RGBX;
  return {};
}

// Two rows that do not begin at a multiple of the vector size: libjpeg-turbo writes aligned rows
// past the cache, and these are read again at once.
std::array<std::uint8_t*, 2> jpeg_decoder::impl::two_lines(std::size_t size) {
  constexpr std::size_t cache_line = 64;
  constexpr std::size_t off = 16;
  const std::size_t stride = (size + cache_line - 1) / cache_line * cache_line;
  const std::size_t needed = 2 * stride + cache_line + off;
  if (lines.size() < needed) lines.resize(needed);
  const auto address = reinterpret_cast<std::uintptr_t>(lines.data());
  std::uint8_t* first = lines.data() + (cache_line - address % cache_line) + off;
  return {first, first + stride};
}

// Converts CMYK pixels in place. Adobe stores them inverted (255: no ink), and in practice so do
// all other writers.
void jpeg_decoder::impl::to_rgbx(std::uint8_t* line, std::size_t width) const {
  if (c.out_color_space != JCS_CMYK) return;
  for (std::size_t i = 0; i < width * 4; i += 4) {
    const unsigned key = line[i + 3];
    for (std::size_t ink = 0; ink < 3; ++ink) {
      line[i + ink] = static_cast<std::uint8_t>((line[i + ink] * key + 127) / 255);
    }
  }
}

// Decodes the image whose header was read. It begins at `origin` of the whole image, at the decoded
// scale.
result<void> jpeg_decoder::impl::read_pixels(const pixel_box& origin, bool fast, bool own_huffman) {
  const pixel_box needed = sink.needed();
  const int top = needed.y - origin.y;
  const int bottom = top + needed.height;
  const int first_column = needed.x - origin.x;
  const int end_column = first_column + needed.width;
  JDIMENSION x = 0;
  JDIMENSION width = 0;
  bool reads_all = false;
  const bool started = guarded(handler, [&] {
    c.scale_num = 1;
    c.scale_denom = static_cast<unsigned>(sink.scale());
    c.dct_method = fast ? JDCT_IFAST : JDCT_ISLOW;
    c.do_fancy_upsampling = fast ? FALSE : TRUE;
    jpeg_start_decompress(&c);
    width = c.output_width;
    // The library then smooths each block using its neighbours, which are different ones if rows or
    // columns are skipped.
    reads_all = lacks_scans(c);
    if (reads_all) return;
    // One more pixel on each side: chroma upsampling reads the neighbours of edge pixels.
    const auto all = static_cast<int>(c.output_width);
    const int right = std::min(std::max(end_column + 1, first_column + narrowest_region), all);
    const int left = std::max(std::min(first_column - 1, right - narrowest_region), 0);
    x = static_cast<JDIMENSION>(left);
    width = static_cast<JDIMENSION>(right - left);
    if (width < c.output_width) jpeg_crop_scanline(&c, &x, &width);
    if (own_huffman) huffman.take_over(c, x, width);
  });
  if (!started) return failed();
  if (lacks_component(c) && !handler.allows_damage()) {
    return error(errc::bad_image, "cannot decode the image: a component has no scan").skippable();
  }
  const std::array<std::uint8_t*, 2> line =
      two_lines(std::size_t{width} * 4 + sink.readable_behind());
  const std::size_t from = (static_cast<std::size_t>(first_column) - x) * 4;
  const bool decoded = guarded(handler, [&] {
    if (top > 0 && !reads_all) jpeg_skip_scanlines(&c, static_cast<JDIMENSION>(top));
    while (c.output_scanline < static_cast<JDIMENSION>(top)) {
      std::array<JSAMPROW, 2> unused = line;
      jpeg_read_scanlines(&c, unused.data(), 1);
    }
    for (int row = top; row < bottom;) {
      // Two rows, or one if the row before is still held.
      const std::size_t held = sink.holds_row() ? 1 : 0;
      std::array<JSAMPROW, 2> to = line;
      const auto wanted = static_cast<JDIMENSION>(
          std::min<std::size_t>(2 - held, static_cast<std::size_t>(bottom - row)));
      const JDIMENSION got = jpeg_read_scanlines(&c, to.data() + held, wanted);
      for (std::size_t i = held; i < held + got; ++i) {
        to_rgbx(to[i], width);
        sink.add_row(to[i] + from);
      }
      row += static_cast<int>(got);
    }
    if (!is_cut) return;
    if (c.output_scanline < c.output_height) {
      // Skipping up to the last row decodes; skipping past it does not.
      jpeg_skip_scanlines(&c, c.output_height - c.output_scanline - 1);
      std::array<JSAMPROW, 2> to = line;
      jpeg_read_scanlines(&c, to.data(), 1);
    }
    // Bytes left over did not become pixels: a truncated download has zeros in place of the rest.
    constexpr std::size_t looked_ahead = 16;
    if (c.src->bytes_in_buffer > looked_ahead) tell_truncated();
  });
  return decoded ? result<void>() : failed();
}

// Decodes only the restart runs that the view needs. False if that is impossible or fails: the file
// is then decoded whole, and decode_file() reports what is wrong with it.
bool jpeg_decoder::impl::decode_runs(std::span<const std::byte> file,
                                     const image_options& options) {
  const int scale = sink.scale();
  const pixel_box needed = sink.needed();
  const pixel_box region{.x = needed.x * scale,
                         .y = needed.y * scale,
                         .width = needed.width * scale,
                         .height = needed.height * scale};
  if (!join_runs(file, headers, region, joined)) return false;
  const pixel_box origin{.x = joined.x / scale, .y = joined.y / scale, .width = 0, .height = 0};
  const bool decoded = read_header(joined.file) &&
                       read_pixels(origin, options.fast, options.own_huffman) &&
                       handler.warnings == 0;
  end_image();
  return decoded;
}

// Decodes the whole file.
result<void> jpeg_decoder::impl::decode_file(std::span<const std::byte> file,
                                             const image_options& options, bool own_huffman,
                                             const view_chooser& choose, const pixel_place& place) {
  huffman.forget();
  auto decoded = read_header(file);
  if (decoded && headers.may_be_preview) decoded = may_be_preview();
  if (decoded) {
    sink.begin(choose, place, options, headers.orientation, static_cast<int>(c.image_width),
               static_cast<int>(c.image_height), row_sink::decoder_scales::yes);
    decoded = read_pixels({}, options.fast, own_huffman);
  }
  end_image();
  return decoded;
}

jpeg_decoder::jpeg_decoder() : impl_(std::make_unique<impl>()) {}
jpeg_decoder::~jpeg_decoder() = default;

int jpeg_decoder::warnings() const {
  return impl_->handler.warnings;
}

result<jpeg_decoder::image_size> jpeg_decoder::read_size(std::span<const std::byte> file,
                                                         const image_limits& limits) {
  impl_->begin({.limits = limits});
  const auto read = impl_->read_header(file);
  const image_size size{.width = static_cast<int>(impl_->c.image_width),
                        .height = static_cast<int>(impl_->c.image_height)};
  impl_->end_image();
  if (impl_->handler.no_memory) throw std::bad_alloc();
  if (!read) return read.error();
  return size;
}

result<void> jpeg_decoder::decode(std::span<const std::byte> file, const image_options& options,
                                  const view_chooser& choose, const pixel_place& place) {
  return metered([&] { return impl_->decode(file, options, choose, place); });
}

result<void> jpeg_decoder::impl::decode(std::span<const std::byte> file,
                                        const image_options& options, const view_chooser& choose,
                                        const pixel_place& place) {
  begin(options);
  headers.read(file);
  forget_tables();
  if (!options.orient) headers.orientation = {};
  const auto& runs = headers.runs;
  const auto pixels =
      static_cast<std::uint64_t>(runs.width) * static_cast<std::uint64_t>(runs.height);
  is_cut = !has_end(file, headers);
  if (options.runs && headers.has_runs && !is_cut && !headers.may_be_preview &&
      pixels <= options.limits.max_pixels) {
    sink.begin(choose, place, options, headers.orientation, runs.width, runs.height,
               row_sink::decoder_scales::yes);
    if (decode_runs(file, options)) {
      sink.finish();
      return {};
    }
  }
  auto decoded = decode_file(file, options, options.own_huffman && !is_cut, choose, place);
  if (handler.no_memory) throw std::bad_alloc();
  if (huffman.gave_up()) decoded = decode_file(file, options, false, choose, place);
  if (handler.no_memory) throw std::bad_alloc();
  if (decoded) sink.finish();
  return decoded;
}

std::vector<std::byte> encode_jpeg(std::span<const std::uint8_t> rgb, int width, int height,
                                   int quality) {
  error_handler handler{};
  auto out = libjpeg::compressed(handler, [&](jpeg_compress_struct& c) {
    c.image_width = static_cast<JDIMENSION>(width);
    c.image_height = static_cast<JDIMENSION>(height);
    c.input_components = 3;
    c.in_color_space = JCS_RGB;
    jpeg_set_defaults(&c);
    jpeg_set_quality(&c, quality, TRUE);
    jpeg_start_compress(&c, TRUE);
    while (c.next_scanline < c.image_height) {
      auto* row = const_cast<JSAMPROW>(rgb.data() + std::size_t{c.next_scanline} *
                                                        static_cast<std::size_t>(width) * 3);
      jpeg_write_scanlines(&c, &row, 1);
    }
  });
  if (!out) throw failure(error(errc::internal, handler.message));
  return std::move(*out);
}

}  // namespace millrace
