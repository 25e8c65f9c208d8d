#include "pipeline/codecs/jpeg_rewrite.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

#include "engine/memory/work_memory.h"
#include "pipeline/codecs/jpeg_errors.h"
#include "pipeline/codecs/jpeg_runs.h"

namespace millrace {
namespace {

using libjpeg::error_handler;
using libjpeg::guarded;

constexpr int jfif_marker = JPEG_APP0;        // JFIF: the library writes its own
constexpr int adobe_marker = JPEG_APP0 + 14;  // Adobe: the library writes its own

// Reads the coefficients of a file.
struct coefficient_reader {
  coefficient_reader() {
    c.err = libjpeg::set_up(handler);
    if (!guarded(handler, [&] { jpeg_create_decompress(&c); })) {
      jpeg_destroy_decompress(&c);
      throw std::bad_alloc();
    }
    libjpeg::watch_runs(c);
    effort.watch(c);
  }
  ~coefficient_reader() { jpeg_destroy_decompress(&c); }
  coefficient_reader(const coefficient_reader&) = delete;
  coefficient_reader& operator=(const coefficient_reader&) = delete;

  result<void> read(std::span<const std::byte> file, const image_limits& limits) {
    constexpr unsigned longest = 0xFFFF;
    effort.begin(limits);
    handler.notes_left = libjpeg::most_kept_markers;
    const bool header = guarded(handler, [&] {
      jpeg_save_markers(&c, JPEG_COM, longest);
      for (int i = 0; i < 16; ++i) jpeg_save_markers(&c, JPEG_APP0 + i, longest);
      jpeg_mem_src(&c, reinterpret_cast<const unsigned char*>(file.data()), file.size());
      jpeg_read_header(&c, TRUE);
    });
    if (!header) return failed();
    const std::uint64_t pixels = std::uint64_t{c.image_width} * c.image_height;
    if (pixels > limits.max_pixels) {
      return error(errc::too_large,
                   fmt::format("an image of {} x {} pixels", c.image_width, c.image_height))
          .skippable();
    }
    const std::uint64_t bytes = libjpeg::coefficient_bytes(c);
    if (bytes > limits.max_held_bytes || !take_work_memory(static_cast<std::size_t>(bytes))) {
      return error(errc::too_large, fmt::format("the coefficients of an image of {} x {} pixels",
                                                c.image_width, c.image_height))
          .skippable();
    }
    const bool all = guarded(handler, [&] { coefficients = jpeg_read_coefficients(&c); });
    if (!all) return failed();
    // The coefficients would be equal, but not the pixels.
    if (libjpeg::lacks_scans(c)) {
      return error(errc::bad_image, "cannot rewrite the image: it lacks scans").skippable();
    }
    // Further images, gain maps and videos appended by cameras: markers give their offsets.
    if (c.src->bytes_in_buffer > 0) {
      return error(errc::bad_image, fmt::format("cannot rewrite the image: {} bytes follow its end",
                                                c.src->bytes_in_buffer))
          .skippable();
    }
    return {};
  }
  error failed() const {
    if (handler.no_memory) throw std::bad_alloc();
    return error(handler.kind, fmt::format("cannot rewrite the image: {}", handler.message))
        .skippable();
  }

  jpeg_decompress_struct c{};
  error_handler handler{};
  libjpeg::effort_limit effort{};
  jvirt_barray_ptr* coefficients = nullptr;
};

// The divisor of `of` nearest to `wanted` by ratio. Shorter runs count as farther, because they
// cost more bytes. Runs of one MCU cost more than they save in bytes and time, so a row without
// another divisor is one run.
int nearest_divisor(int of, int wanted) {
  const auto distance = [&](int d) {
    const double ratio = std::log(static_cast<double>(d) / wanted);
    return ratio < 0 ? -2 * ratio : ratio;
  };
  int best = of;
  for (int d = 2; d < of; ++d) {
    if (of % d == 0 && distance(d) < distance(best)) best = d;
  }
  return wanted == 1 ? 1 : best;
}

int mcus_across(const jpeg_decompress_struct& c) {
  const unsigned factor = c.num_components == 1 ? 1 : static_cast<unsigned>(c.max_h_samp_factor);
  const unsigned unit = DCTSIZE * factor;
  return static_cast<int>((c.image_width + unit - 1) / unit);
}

// Called within guarded().
void write_markers(const jpeg_decompress_struct& from, jpeg_compress_struct& to) {
  for (auto* m = from.marker_list; m != nullptr; m = m->next) {
    const bool is_jfif = to.write_JFIF_header != FALSE && m->marker == jfif_marker &&
                         m->data_length >= 5 && std::memcmp(m->data, "JFIF", 5) == 0;
    const bool is_adobe = to.write_Adobe_marker != FALSE && m->marker == adobe_marker &&
                          m->data_length >= 5 && std::memcmp(m->data, "Adobe", 5) == 0;
    if (!is_jfif && !is_adobe) jpeg_write_marker(&to, m->marker, m->data, m->data_length);
  }
}

result<std::vector<std::byte>> written(coefficient_reader& from, int mcus) {
  error_handler handler{};
  auto out = libjpeg::compressed(handler, [&](jpeg_compress_struct& c) {
    jpeg_copy_critical_parameters(&from.c, &c);
    c.optimize_coding = TRUE;
    c.arith_code = FALSE;
    c.restart_interval = static_cast<unsigned>(nearest_divisor(mcus_across(from.c), mcus));
    jpeg_write_coefficients(&c, from.coefficients);
    write_markers(from.c, c);
  });
  if (!out) {
    return error(errc::bad_image, fmt::format("cannot rewrite the image: {}", handler.message))
        .skippable();
  }
  return std::move(*out);
}

bool same_coefficients(coefficient_reader& a, coefficient_reader& b) {
  const bool same_shape =
      a.c.image_width == b.c.image_width && a.c.image_height == b.c.image_height &&
      a.c.num_components == b.c.num_components && a.c.jpeg_color_space == b.c.jpeg_color_space;
  if (!same_shape) return false;
  for (int i = 0; i < a.c.num_components; ++i) {
    const auto& x = a.c.comp_info[i];
    const auto& y = b.c.comp_info[i];
    if (x.width_in_blocks != y.width_in_blocks || x.height_in_blocks != y.height_in_blocks ||
        x.quant_table == nullptr || y.quant_table == nullptr ||
        std::memcmp(x.quant_table->quantval, y.quant_table->quantval,
                    sizeof x.quant_table->quantval) != 0) {
      return false;
    }
    for (JDIMENSION row = 0; row < x.height_in_blocks; ++row) {
      const auto blocks = [&](coefficient_reader& r) {
        auto* common = reinterpret_cast<j_common_ptr>(&r.c);
        return r.c.mem->access_virt_barray(common, r.coefficients[i], row, 1, FALSE)[0];
      };
      if (std::memcmp(blocks(a), blocks(b), x.width_in_blocks * sizeof(JBLOCK)) != 0) return false;
    }
  }
  return true;
}

}  // namespace

namespace {

result<std::vector<std::byte>> rewritten(std::span<const std::byte> file, int mcus,
                                         const image_limits& limits) {
  coefficient_reader original;
  if (auto read = original.read(file, limits); !read) return read.error();
  auto out = written(original, mcus);
  if (!out) return out;
  coefficient_reader again;
  const auto read = again.read(*out, limits);
  bool is_same = false;
  if (read) {
    // Either library object may jump.
    const bool compared = guarded(original.handler, [&] {
      guarded(again.handler, [&] { is_same = same_coefficients(original, again); });
    });
    is_same = is_same && compared;
  }
  if (!is_same) {
    return error(errc::bad_image, "the image cannot be rewritten without a loss").skippable();
  }
  return out;
}

}  // namespace

result<std::vector<std::byte>> with_restart_runs(std::span<const std::byte> file, int mcus,
                                                 const image_limits& limits) {
  return metered([&] { return rewritten(file, mcus, limits); });
}

}  // namespace millrace
