#include "pipeline/codecs/png.h"

#include <fmt/format.h>
#include <png.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <new>

#include "engine/base/printable.h"
#include "engine/host/cpu_time.h"
#include "engine/memory/work_memory.h"
#include "pipeline/codecs/png_chunks.h"
#include "pipeline/pixels/row_sink.h"

namespace millrace {
namespace {

constexpr std::uint8_t gray = 128;  // for missing pixels

// libpng reports errors through a call that must not return. It jumps to the innermost guarded()
// call, whose body must hold nothing that needs a destructor.
struct reader {
  std::jmp_buf escape;
  std::array<char, 160> message;
  errc kind;
  int warnings;
  bool lenient;
  bool truncated;
  bool no_memory;  // the host refused memory: not the file's fault
  bool in_header;  // reading what precedes the pixels
  const std::byte* next;
  std::size_t left;
  unsigned calls;
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

[[noreturn]] void on_png_error(png_structp png, png_const_charp what) {
  jump(reader_of(png), errc::bad_image, what);
}

// Most warnings are about data that is not used here, such as colour profiles. A wrong checksum is
// damage.
void on_png_warning(png_structp png, png_const_charp what) {
  reader& r = reader_of(png);
  const bool is_damage = std::strstr(what, "CRC") != nullptr ||
                         std::strstr(what, "ADLER") != nullptr ||
                         std::strstr(what, "incorrect data check") != nullptr;
  if (!is_damage) return;
  if (!r.lenient) jump(r, errc::bad_image, what);
  ++r.warnings;
}

void check_cpu(reader& r) {
  if (thread_cpu_seconds() > r.cpu_deadline) jump(r, errc::too_large, "it takes too long");
}

void give_bytes(png_structp png, png_bytep to, std::size_t size) {
  reader& r = *static_cast<reader*>(png_get_io_ptr(png));
  // Long work always reads more bytes of the file, so checking here suffices.
  constexpr unsigned calls_between_looks = 64;
  if (++r.calls % calls_between_looks == 0) check_cpu(r);
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

// libpng's memory is work memory. Each block's size precedes it.
constexpr std::size_t size_room = alignof(std::max_align_t);

png_voidp allocate(png_structp png, png_alloc_size_t size) {
  // libpng trusts a chunk's length, but no chunk can be longer than the rest of its file.
  constexpr std::size_t other_than_chunks = 1 << 20;
  reader& r = reader_of(png);
  if (r.in_header && size > r.left + other_than_chunks) return nullptr;
  if (!take_work_memory(size + size_room)) return nullptr;
  void* memory = std::malloc(size + size_room);
  r.no_memory = r.no_memory || memory == nullptr;
  if (memory == nullptr) return nullptr;
  *static_cast<std::size_t*>(memory) = size + size_room;
  return static_cast<std::byte*>(memory) + size_room;
}

void release(png_structp /*png*/, png_voidp memory) {
  if (memory == nullptr) return;
  void* begin = static_cast<std::byte*>(memory) - size_room;
  give_work_memory(*static_cast<std::size_t*>(begin));
  std::free(begin);
}

}  // namespace

struct png_decoder::impl {
  ~impl() { end(); }

  void begin(std::span<const std::byte> file, const image_options& options);
  void end();
  result<void> decode(std::span<const std::byte> file, const image_options& options,
                      const view_chooser& choose, const pixel_place& place);
  result<void> read_header(const image_options& options);
  result<void> check_chunks(const image_options& options);
  result<void> read_rows(const image_options& options);
  void read_interlaced();
  error failed() const {
    return error(r.kind, fmt::format("cannot decode the image: {}", r.message.data())).skippable();
  }

  error too_large(const image_options& options) const;

  reader r{};
  png_structp png = nullptr;
  png_infop info = nullptr;
  int width = 0;
  int height = 0;
  bool interlaced = false;
  png_chunks chunks;
  row_sink sink;
  std::vector<std::uint8_t> pixels;  // two rows, or all rows of an interlaced image
  std::vector<png_bytep> rows;       // of an interlaced image
  int rows_read = 0;
};

void png_decoder::impl::begin(std::span<const std::byte> file, const image_options& options) {
  end();  // an exception may have left an image open
  r = {};
  r.lenient = options.lenient;
  r.next = file.data();
  r.left = file.size();
  r.cpu_deadline = thread_cpu_seconds() + options.limits.max_cpu_seconds;
  rows_read = 0;
  chunks = chunks_of_png(file, options.orient);
}

// Frees all of the library's memory before the work it is counted in ends.
void png_decoder::impl::end() {
  png_destroy_read_struct(&png, &info, nullptr);
  drop_large(pixels);
  drop_large(rows);
}

result<void> png_decoder::impl::read_header(const image_options& options) {
  png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &r, on_png_error, on_png_warning, nullptr,
                                 allocate, release);
  if (png != nullptr) info = png_create_info_struct(png);
  if (info == nullptr) return out_of_memory();
  const bool read = guarded(r, [&] {
    constexpr png_alloc_size_t most_of_a_chunk = 8 << 20;
    png_set_read_fn(png, &r, give_bytes);
    png_set_chunk_malloc_max(png, most_of_a_chunk);
    // Ignore all ancillary chunks but tRNS.
    constexpr int all_other = -1;
    static constexpr std::array<png_byte, 5> read{'t', 'R', 'N', 'S', '\0'};
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, all_other);
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_AS_DEFAULT, read.data(), 1);
    png_set_chunk_cache_max(png, 4);
    if (options.lenient) png_set_crc_action(png, PNG_CRC_WARN_USE, PNG_CRC_WARN_USE);
    r.in_header = true;
    png_read_info(png, info);
  });
  r.in_header = false;
  if (!read) return failed();
  width = static_cast<int>(png_get_image_width(png, info));
  height = static_cast<int>(png_get_image_height(png, info));
  interlaced = png_get_interlace_type(png, info) != PNG_INTERLACE_NONE;
  const auto count = static_cast<std::uint64_t>(width) * static_cast<std::uint64_t>(height);
  const bool fits = count <= options.limits.max_pixels;
  if (fits && (!interlaced || count * 4 <= options.limits.max_held_bytes)) return {};
  return too_large(options);
}

error png_decoder::impl::too_large(const image_options& options) const {
  return error(errc::too_large, fmt::format("{} of {} x {} pixels (at most {} in all)",
                                            interlaced ? "an interlaced PNG" : "a PNG", width,
                                            height, options.limits.max_pixels))
      .skippable();
}

// Reports a damaged or truncated file in every epoch, whatever its view needs. Called after
// read_header(), so that damage before the pixels is reported first.
result<void> png_decoder::impl::check_chunks(const image_options& options) {
  const auto fail = [this](const std::string& what) {
    std::snprintf(r.message.data(), r.message.size(), "%s", what.c_str());
    r.kind = errc::bad_image;
    return failed();
  };
  if (chunks.damaged > 0 && !options.lenient) {
    return fail(fmt::format("{}: CRC error", printable(chunks.damaged_name)));
  }
  if (!chunks.has_end && !options.fill_truncated) {
    return fail("the file ends before its last chunk, IEND");
  }
  r.warnings += chunks.damaged + (chunks.has_end ? 0 : 1);
  // chunks_of_png() has verified the checksums.
  png_set_crc_action(png, PNG_CRC_QUIET_USE, PNG_CRC_NO_CHANGE);
  return {};
}

// Reads Adam7's passes. Pixels that a truncated file lacks stay gray.
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
  const std::size_t bytes = stride * count + sink.readable_behind();
  if (!take_work_memory(bytes + count * sizeof(png_bytep))) return too_large(options);
  pixels.assign(bytes, gray);
  rows.clear();
  for (std::size_t y = 0; y < count; ++y) rows.push_back(pixels.data() + y * stride);
  const auto row_of = [&](int y) { return rows[static_cast<std::size_t>(y) % count]; };
  const int end = needed.y + needed.height;
  const auto add = [&](int y) {
    const bool is_needed = y >= needed.y && y < end;
    if (is_needed) sink.add_row(row_of(y) + static_cast<std::size_t>(needed.x) * 4);
    rows_read = y + 1;
  };
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
    if (chunks.has_end) ++r.warnings;
  }
  // Rows of an interlaced image, and those that a truncated file lacks.
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
  return metered([&] {
    auto decoded = impl_->decode(file, options, choose, place);
    impl_->end();
    if (impl_->r.no_memory) throw std::bad_alloc();
    return decoded;
  });
}

result<void> png_decoder::impl::decode(std::span<const std::byte> file,
                                       const image_options& options, const view_chooser& choose,
                                       const pixel_place& place) {
  begin(file, options);
  if (auto read = read_header(options); !read) return read;
  if (auto checked = check_chunks(options); !checked) return checked;
  sink.begin(choose, place, options, chunks.orientation, width, height);
  auto decoded = read_rows(options);
  if (decoded) sink.finish();
  return decoded;
}

namespace {

// libpng's state while writing an image.
struct encoder {
  encoder()
      : png(png_create_write_struct(PNG_LIBPNG_VER_STRING, &r, on_png_error, on_png_warning)) {
    if (png == nullptr) throw std::bad_alloc();
    info = png_create_info_struct(png);
  }
  ~encoder() { png_destroy_write_struct(&png, &info); }
  encoder(const encoder&) = delete;
  encoder& operator=(const encoder&) = delete;

  // Must not throw into libpng: `made` has room for all bytes of a row.
  static void take_bytes(png_structp png, png_bytep from, std::size_t size) {
    auto& made = *static_cast<std::vector<std::byte>*>(png_get_io_ptr(png));
    if (size > made.capacity() - made.size()) png_error(png, "a row gives too many bytes");
    const auto* bytes = reinterpret_cast<const std::byte*>(from);
    made.insert(made.end(), bytes, bytes + size);
  }

  template <class F>
  void call(F&& f) {
    if (!guarded(r, f)) throw failure(error(errc::internal, r.message.data()));
  }

  reader r{.lenient = true};
  png_structp png;
  png_infop info = nullptr;
  std::vector<std::byte> made;
};

}  // namespace

void encode_png(int width, int height,
                const std::function<std::span<const std::uint8_t>(int y)>& row_of,
                const std::function<void(std::span<const std::byte>)>& take) {
  constexpr std::size_t held_by_zlib = std::size_t{1} << 18;
  encoder e;
  if (e.info == nullptr) throw std::bad_alloc();
  e.made.reserve(static_cast<std::size_t>(width) * 6 + held_by_zlib);
  const auto hand_over = [&] {
    take(e.made);
    e.made.clear();
  };
  e.call([&] {
    png_set_write_fn(e.png, &e.made, encoder::take_bytes, nullptr);
    png_set_IHDR(e.png, e.info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height),
                 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                 PNG_FILTER_TYPE_DEFAULT);
    png_write_info(e.png, e.info);
  });
  for (int y = 0; y < height; ++y) {
    const std::span<const std::uint8_t> row = row_of(y);
    e.call([&] { png_write_row(e.png, row.data()); });
    hand_over();
  }
  e.call([&] { png_write_end(e.png, nullptr); });
  hand_over();
}

std::vector<std::byte> encode_png(std::span<const std::uint8_t> rgb, int width, int height) {
  const std::size_t row_bytes = static_cast<std::size_t>(width) * 3;
  std::vector<std::byte> out;
  encode_png(
      width, height,
      [&](int y) { return rgb.subspan(static_cast<std::size_t>(y) * row_bytes, row_bytes); },
      [&](std::span<const std::byte> made) { out.insert(out.end(), made.begin(), made.end()); });
  return out;
}

}  // namespace millrace
