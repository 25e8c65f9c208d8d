#include "pipeline/images/png.h"

#include <fmt/format.h>
#include <png.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstring>

#include "engine/cpu_time.h"
#include "pipeline/images/row_sink.h"

namespace millrace {
namespace {

constexpr std::uint8_t gray = 128;  // of pixels that are missing

// libpng reports errors by a call that must not return. It jumps to the innermost guarded() call,
// whose body holds nothing that a destructor would have to clean up.
struct reader {
  std::jmp_buf escape;
  std::array<char, 160> message;
  errc kind;
  int warnings;
  bool lenient;
  bool truncated;
  const std::byte* next;
  std::size_t left;
  double cpu_deadline;
};

reader& reader_of(png_structp png) {
  return *static_cast<reader*>(png_get_error_ptr(png));
}

[[noreturn]] void jump(reader& r, errc kind, const char* what) {
  std::snprintf(r.message.data(), r.message.size(), "%s", what);
  r.kind = kind;
  std::longjmp(r.escape, 1);
}

[[noreturn]] void on_error(png_structp png, png_const_charp what) {
  jump(reader_of(png), errc::bad_image, what);
}

// Most are about what is not used here, such as colour profiles. Wrong checksums are damage.
void on_warning(png_structp png, png_const_charp what) {
  reader& r = reader_of(png);
  const bool is_damage = std::strstr(what, "CRC") != nullptr ||
                         std::strstr(what, "ADLER") != nullptr ||
                         std::strstr(what, "incorrect data check") != nullptr;
  if (!is_damage) return;
  if (!r.lenient) jump(r, errc::bad_image, what);
  ++r.warnings;
}

void give_bytes(png_structp png, png_bytep to, std::size_t size) {
  reader& r = *static_cast<reader*>(png_get_io_ptr(png));
  if (size > r.left) {
    r.truncated = true;
    jump(r, errc::bad_image, "the file ends before the image");
  }
  std::memcpy(to, r.next, size);
  r.next += size;
  r.left -= size;
}

template <class F>
bool guarded(reader& r, F&& f) {
  if (setjmp(r.escape) != 0) return false;
  f();
  return true;
}

void check_cpu(reader& r) {
  if (thread_cpu_seconds() > r.cpu_deadline) jump(r, errc::too_large, "it takes too long");
}

}  // namespace

struct png_decoder::impl {
  ~impl() { png_destroy_read_struct(&png, &info, nullptr); }

  void begin(std::span<const std::byte> file, const image_options& options);
  result<void> read_header(const image_options& options);
  result<void> read_rows(const image_options& options);
  void read_interlaced();
  error failed() const {
    return error(r.kind, fmt::format("cannot decode the image: {}", r.message.data())).skippable();
  }

  reader r{};
  png_structp png = nullptr;
  png_infop info = nullptr;
  int width = 0;
  int height = 0;
  bool interlaced = false;
  exif_orientation orientation;
  row_sink sink;
  std::vector<std::uint8_t> pixels;  // two rows, or all of an interlaced image
  std::vector<png_bytep> rows;       // of an interlaced image
  int rows_read = 0;
};

void png_decoder::impl::begin(std::span<const std::byte> file, const image_options& options) {
  png_destroy_read_struct(&png, &info, nullptr);
  r = {};
  r.lenient = options.lenient;
  r.next = file.data();
  r.left = file.size();
  r.cpu_deadline = thread_cpu_seconds() + options.limits.max_cpu_seconds;
  orientation = {};
  rows_read = 0;
}

result<void> png_decoder::impl::read_header(const image_options& options) {
  png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, on_error, on_warning);
  if (png != nullptr) info = png_create_info_struct(png);
  if (info == nullptr) return error(errc::no_memory, "libpng has no memory");
  const bool read = guarded(r, [&] {
    constexpr png_alloc_size_t most_of_a_chunk = 8 << 20;
    png_set_read_fn(png, &r, give_bytes);
    png_set_chunk_malloc_max(png, most_of_a_chunk);
    if (options.lenient) png_set_crc_action(png, PNG_CRC_WARN_USE, PNG_CRC_WARN_USE);
    png_set_option(png, PNG_SKIP_sRGB_CHECK_PROFILE, PNG_OPTION_ON);
    png_read_info(png, info);
    png_uint_32 size = 0;
    png_bytep exif = nullptr;
    if (options.orient && png_get_eXIf_1(png, info, &size, &exif) != 0) {
      orientation = orientation_of(std::as_bytes(std::span(exif, size)));
    }
  });
  if (!read) return failed();
  width = static_cast<int>(png_get_image_width(png, info));
  height = static_cast<int>(png_get_image_height(png, info));
  interlaced = png_get_interlace_type(png, info) != PNG_INTERLACE_NONE;
  const auto count = static_cast<std::uint64_t>(width) * static_cast<std::uint64_t>(height);
  const bool fits = count <= options.limits.max_pixels;
  if (fits && (!interlaced || count * 4 <= options.limits.max_held_bytes)) return {};
  return error(errc::too_large, fmt::format("{} of {} x {} pixels (at most {} in all)",
                                            interlaced ? "an interlaced PNG" : "a PNG", width,
                                            height, options.limits.max_pixels))
      .skippable();
}

// Adam7's passes; what a truncated file lacks stays gray.
void png_decoder::impl::read_interlaced() {
  const int passes = png_set_interlace_handling(png);
  for (int pass = 0; pass < passes; ++pass) {
    for (int y = 0; y < height; ++y) {
      png_read_row(png, rows[static_cast<std::size_t>(y)], nullptr);
      if (y % 64 == 0) check_cpu(r);
    }
  }
}

result<void> png_decoder::impl::read_rows(const image_options& options) {
  const pixel_box needed = sink.needed();
  const std::size_t stride = static_cast<std::size_t>(width) * 4;
  const auto count = static_cast<std::size_t>(interlaced ? height : 2);
  pixels.assign(stride * count + sink.readable_behind(), gray);
  rows.clear();
  for (std::size_t y = 0; y < count; ++y) rows.push_back(pixels.data() + y * stride);
  const auto row_of = [&](int y) { return rows[static_cast<std::size_t>(y) % count]; };
  const auto add = [&](int y) {
    if (y >= needed.y) sink.add_row(row_of(y) + static_cast<std::size_t>(needed.x) * 4);
    rows_read = y + 1;
  };
  const int end = needed.y + needed.height;
  const bool read = guarded(r, [&] {
    png_set_expand(png);
    png_set_strip_16(png);
    png_set_gray_to_rgb(png);
    png_set_filler(png, 0xFF, PNG_FILLER_AFTER);
    if (interlaced) {
      read_interlaced();
      return;
    }
    png_start_read_image(png);
    for (int y = 0; y < end; ++y) {
      png_read_row(png, row_of(y), nullptr);
      add(y);
      if (y % 64 == 0) check_cpu(r);
    }
  });
  if (!read) {
    if (!r.truncated || !options.fill_truncated) return failed();
    ++r.warnings;
  }
  // An interlaced image's rows, and those that a truncated file lacks.
  for (int y = rows_read; y < end; ++y) {
    if (!interlaced) std::fill_n(row_of(y), stride, gray);
    add(y);
  }
  return {};
}

png_decoder::png_decoder() : impl_(std::make_unique<impl>()) {}
png_decoder::~png_decoder() = default;

int png_decoder::warnings() const {
  return impl_->r.warnings;
}

result<void> png_decoder::decode(std::span<const std::byte> file, const image_options& options,
                                 const view_chooser& choose, const pixel_place& place) {
  impl& d = *impl_;
  d.begin(file, options);
  if (auto read = d.read_header(options); !read) return read;
  d.sink.begin(choose, place, options, d.orientation, d.width, d.height);
  auto decoded = d.read_rows(options);
  if (decoded) d.sink.finish();
  return decoded;
}

std::vector<std::byte> encode_png(std::span<const std::uint8_t> rgb, int width, int height) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = PNG_FORMAT_RGB;
  std::vector<std::byte> out(PNG_IMAGE_PNG_SIZE_MAX(image));
  png_alloc_size_t size = out.size();
  if (png_image_write_to_memory(&image, out.data(), &size, 0, rgb.data(), 0, nullptr) == 0) {
    throw failure(error(errc::internal, image.message));
  }
  out.resize(size);
  return out;
}

}  // namespace millrace
