// The one translation unit that includes libjpeg.
#include "pipeline/jpeg.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdio>
// libjpeg's header needs size_t and FILE before it.
#include <jerror.h>
#include <jpeglib.h>

#include <csetjmp>
#include <cstring>

#include "pipeline/resample.h"

namespace millrace {
namespace {

// libjpeg reports errors by a call that must not return. It jumps to the innermost guarded() call,
// whose body holds nothing that a destructor would have to clean up.
struct error_handler {
  jpeg_error_mgr base;  // first: libjpeg hands back a pointer to it
  std::jmp_buf escape;
  char message[JMSG_LENGTH_MAX];
  errc kind;
};

void fail(j_common_ptr c) {
  auto* handler = reinterpret_cast<error_handler*>(c->err);
  handler->base.format_message(c, handler->message);
  handler->kind = errc::bad_image;
  std::longjmp(handler->escape, 1);
}

// Level -1 is a warning: data that is corrupt or missing. Some are about decoration only.
void on_message(j_common_ptr c, int level) {
  const int code = c->err->msg_code;
  const bool harmless = code == JWRN_JFIF_MAJOR || code == JWRN_ADOBE_XFORM ||
                        code == JWRN_EXTRANEOUS_DATA || code == JWRN_BOGUS_ICC;
  if (level < 0 && !harmless) fail(c);
}

void ignore_output(j_common_ptr) {}

struct scan_limit {
  jpeg_progress_mgr base;
  int max_scans;
};

void check_scans(j_common_ptr c) {
  const auto* limit = reinterpret_cast<scan_limit*>(c->progress);
  if (c->is_decompressor == 0) return;
  if (reinterpret_cast<j_decompress_ptr>(c)->input_scan_number <= limit->max_scans) return;
  auto* handler = reinterpret_cast<error_handler*>(c->err);
  std::snprintf(handler->message, sizeof handler->message, "more than %d scans", limit->max_scans);
  handler->kind = errc::too_large;
  std::longjmp(handler->escape, 1);
}

// True when `f` came to its end. `f` may be left by a jump: it must own nothing.
template <class F>
bool guarded(error_handler& handler, F&& f) {
  if (setjmp(handler.escape) != 0) return false;
  f();
  return true;
}

std::uint64_t coefficient_bytes(const jpeg_decompress_struct& c) {
  std::uint64_t blocks = 0;
  for (int i = 0; i < c.num_components; ++i) {
    const auto& component = c.comp_info[i];
    const auto across = [](JDIMENSION size, int factor, int most) {
      const std::uint64_t unit = std::uint64_t{8} * static_cast<unsigned>(most);
      return (std::uint64_t{size} * static_cast<unsigned>(factor) + unit - 1) / unit;
    };
    blocks += across(c.image_width, component.h_samp_factor, c.max_h_samp_factor) *
              across(c.image_height, component.v_samp_factor, c.max_v_samp_factor);
  }
  return blocks * DCTSIZE2 * sizeof(JCOEF);
}

}  // namespace

struct jpeg_decoder::impl {
  impl() {
    c.err = jpeg_std_error(&handler.base);
    handler.base.error_exit = fail;
    handler.base.emit_message = on_message;
    handler.base.output_message = ignore_output;
    jpeg_create_decompress(&c);
    scans.base.progress_monitor = check_scans;
    c.progress = &scans.base;
  }
  ~impl() { jpeg_destroy_decompress(&c); }

  error failed() const {
    return error(handler.kind, fmt::format("cannot decode the image: {}", handler.message))
        .skippable();
  }

  result<void> read_header(std::span<const std::byte> file);
  result<void> read_pixels(const view_of_image& view, std::uint8_t* out);
  const std::uint8_t* to_rgbx(std::size_t from, std::size_t width);

  jpeg_limits limits;
  jpeg_decompress_struct c{};
  error_handler handler{};
  scan_limit scans{};
  resampler resample;
  std::vector<std::uint8_t> line;  // as the library gives it
  std::vector<std::uint8_t> rgbx;
};

result<void> jpeg_decoder::impl::read_header(std::span<const std::byte> file) {
  if (file.empty()) return error(errc::bad_image, "the image has no bytes").skippable();
  const bool ok = guarded(handler, [&] {
    jpeg_mem_src(&c, reinterpret_cast<const unsigned char*>(file.data()), file.size());
    jpeg_read_header(&c, TRUE);
  });
  if (!ok) return failed();
  const std::uint64_t pixels = std::uint64_t{c.image_width} * c.image_height;
  if (pixels > limits.max_pixels) {
    return error(errc::too_large, fmt::format("an image of {} x {} pixels (at most {} in all)",
                                              c.image_width, c.image_height, limits.max_pixels))
        .skippable();
  }
  if (jpeg_has_multiple_scans(&c) != 0 && coefficient_bytes(c) > limits.max_coefficient_bytes) {
    return error(errc::too_large, fmt::format("a progressive image of {} x {} pixels",
                                              c.image_width, c.image_height))
        .skippable();
  }
  const bool is_cmyk = c.jpeg_color_space == JCS_CMYK || c.jpeg_color_space == JCS_YCCK;
  c.out_color_space = is_cmyk ? JCS_CMYK : JCS_EXT_RGBX;
  return {};
}

// `width` pixels of `line` from column `from` on, four bytes each.
const std::uint8_t* jpeg_decoder::impl::to_rgbx(std::size_t from, std::size_t width) {
  const std::uint8_t* pixels = line.data() + from * 4;
  if (c.out_color_space != JCS_CMYK) return pixels;
  // Adobe writes CMYK inverted, and so do all others in practice: 255 is no ink.
  rgbx.resize(width * 4);
  for (std::size_t i = 0; i < width * 4; i += 4) {
    const unsigned key = pixels[i + 3];
    for (std::size_t ink = 0; ink < 3; ++ink) {
      rgbx[i + ink] = static_cast<std::uint8_t>((pixels[i + ink] * key + 127) / 255);
    }
  }
  return rgbx.data();
}

result<void> jpeg_decoder::impl::read_pixels(const view_of_image& view, std::uint8_t* out) {
  resample.begin(view);
  const int top = view.crop.y + resample.first_row();
  const int bottom = view.crop.y + resample.end_row();
  // One pixel more on each side: chroma upsampling at the region's edge looks at its neighbour.
  const int left = std::max(view.crop.x - 1, 0);
  const int right = std::min(view.crop.x + view.crop.width + 1, static_cast<int>(c.image_width));
  auto x = static_cast<JDIMENSION>(left);
  auto width = static_cast<JDIMENSION>(right - left);
  const bool started = guarded(handler, [&] {
    jpeg_start_decompress(&c);
    if (width < c.image_width) jpeg_crop_scanline(&c, &x, &width);
  });
  if (!started) return failed();
  line.resize(std::size_t{width} * 4);
  const auto from = static_cast<std::size_t>(view.crop.x) - x;
  int row = 0;
  const bool decoded = guarded(handler, [&] {
    if (top > 0) jpeg_skip_scanlines(&c, static_cast<JDIMENSION>(top));
    row = top;
  });
  if (!decoded) return failed();
  for (; row < bottom; ++row) {
    JSAMPROW to = line.data();
    const bool got = guarded(handler, [&] { jpeg_read_scanlines(&c, &to, 1); });
    if (!got) return failed();
    resample.add_row(to_rgbx(from, static_cast<std::size_t>(view.crop.width)));
  }
  resample.finish(out);
  return {};
}

jpeg_decoder::jpeg_decoder() : impl_(std::make_unique<impl>()) {}
jpeg_decoder::~jpeg_decoder() = default;

result<void> jpeg_decoder::decode(
    std::span<const std::byte> file, const jpeg_limits& limits,
    const std::function<view_of_image(int, int)>& choose,
    const std::function<std::span<std::uint8_t>(const view_of_image&)>& out) {
  impl& d = *impl_;
  d.limits = limits;
  d.scans.max_scans = limits.max_scans;
  auto decoded = d.read_header(file);
  if (decoded) {
    const view_of_image view =
        choose(static_cast<int>(d.c.image_width), static_cast<int>(d.c.image_height));
    decoded = d.read_pixels(view, out(view).data());
  }
  // Ends the image early where rows are left; the object serves the next one.
  jpeg_abort_decompress(&d.c);
  return decoded;
}

std::vector<std::byte> encode_jpeg(std::span<const std::uint8_t> rgb, int width, int height,
                                   int quality) {
  jpeg_compress_struct c{};
  error_handler handler{};
  c.err = jpeg_std_error(&handler.base);
  handler.base.error_exit = fail;
  unsigned char* encoded = nullptr;
  unsigned long size = 0;
  jpeg_create_compress(&c);
  const bool ok = guarded(handler, [&] {
    jpeg_mem_dest(&c, &encoded, &size);
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
    jpeg_finish_compress(&c);
  });
  std::vector<std::byte> out;
  if (ok) {
    const auto* begin = reinterpret_cast<const std::byte*>(encoded);
    out.assign(begin, begin + size);
  }
  jpeg_destroy_compress(&c);
  std::free(encoded);
  if (!ok) throw failure(error(errc::internal, handler.message));
  return out;
}

}  // namespace millrace
