#pragma once

// Only for translation units that include libjpeg.

#include <cstddef>
#include <cstdio>
// libjpeg's header needs size_t and FILE before it.
#include <jerror.h>
#include <jpeglib.h>

#include <algorithm>
#include <csetjmp>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <optional>
#include <vector>

#include "engine/base/result.h"
#include "engine/host/cpu_time.h"
#include "pipeline/pixels/options.h"

namespace millrace::libjpeg {

// Markers that an image may have where the library keeps them: it searches its list for each one.
inline constexpr int most_kept_markers = 10'000;

// libjpeg reports errors through a call that must not return. It jumps to the innermost guarded()
// call, whose body must hold nothing that needs a destructor.
struct error_handler {
  jpeg_error_mgr base;  // first: libjpeg passes a pointer to it
  std::jmp_buf escape;
  char message[JMSG_LENGTH_MAX];
  errc kind;
  bool lenient;         // warnings are counted; if false, they are errors
  bool fill_truncated;  // an early end of the file is a warning; if false, an error
  bool truncated;       // the file ended early
  bool no_memory;       // the host refused memory: not the file's fault
  int warnings;
  int notes_left;  // markers that may follow; 0: any number

  // Counts a warning. Once the file has ended early, all further warnings come from that.
  bool allows_damage() {
    ++warnings;
    return truncated ? fill_truncated : lenient;
  }
};

inline void fail(j_common_ptr c) {
  auto* handler = reinterpret_cast<error_handler*>(c->err);
  handler->base.format_message(c, handler->message);
  handler->kind = errc::bad_image;
  // Odd codes: the file wants more than the library allows. Source: jmemmgr.c.
  const bool is_refused = c->err->msg_code == JERR_OUT_OF_MEMORY && c->err->msg_parm.i[0] % 2 == 0;
  handler->no_memory = handler->no_memory || is_refused;
  std::longjmp(handler->escape, 1);
}

// Whether a progressive image lacks scans that complete its coefficients; known once decoding has
// started or its coefficients were read. The library then smooths blocks using their neighbours.
// Source: libjpeg-turbo, jdcoefct.c, smoothing_ok().
inline bool lacks_scans(const jpeg_decompress_struct& c) {
  if (c.progressive_mode == FALSE || c.coef_bits == nullptr) return false;
  const auto is_incomplete = [](int bits) { return bits != 0; };
  return std::any_of(c.coef_bits, c.coef_bits + c.num_components, [&](const auto& of_component) {
    return std::ranges::any_of(of_component, is_incomplete);
  });
}

// Whether a component has had no scan. Source: libjpeg-turbo, jdinput.c, latch_quant_tables().
inline bool lacks_component(const jpeg_decompress_struct& c) {
  return std::any_of(c.comp_info, c.comp_info + c.num_components,
                     [](const auto& component) { return component.quant_table == nullptr; });
}

// Whether stray bytes before a marker may be image data: a scan with a damaged header, or the rest
// of a run. One stray byte at the end of a run is harmless: some encoders pad runs with a byte of
// ones.
inline bool may_be_of_image(j_common_ptr c) {
  const auto& image = *reinterpret_cast<j_decompress_ptr>(c);
  if (image.input_scan_number == 0) return false;
  const int bytes = c->err->msg_parm.i[0];
  const int marker = c->err->msg_parm.i[1];
  if (marker == JPEG_EOI) return lacks_component(image) || lacks_scans(image);
  const bool ends_run = marker >= JPEG_RST0 && marker <= JPEG_RST0 + 7;
  return !ends_run || bytes > 1;
}

// Ends the guarded() call with this reason.
[[noreturn]] inline void give_up(j_common_ptr c, const char* format, int number) {
  auto* handler = reinterpret_cast<error_handler*>(c->err);
  std::snprintf(handler->message, sizeof handler->message, format, number);
  handler->kind = errc::too_large;
  std::longjmp(handler->escape, 1);
}

// Level -1 is a warning: corrupt or missing data. Warnings about metadata are harmless. Other
// levels are notes, at least one for each marker.
inline void on_message(j_common_ptr c, int level) {
  const int code = c->err->msg_code;
  if (level >= 0 && code != JTRC_RST) {  // a restart marker is not kept
    auto& left = reinterpret_cast<error_handler*>(c->err)->notes_left;
    if (left == 1) give_up(c, "more than %d markers", most_kept_markers);
    if (left > 0) --left;
  }
  const bool harmless = code == JWRN_JFIF_MAJOR || code == JWRN_ADOBE_XFORM ||
                        code == JWRN_BOGUS_ICC ||
                        (code == JWRN_EXTRANEOUS_DATA && !may_be_of_image(c));
  if (level >= 0 || harmless) return;
  auto* handler = reinterpret_cast<error_handler*>(c->err);
  if (code == JWRN_JPEG_EOF) handler->truncated = true;
  if (!handler->allows_damage()) fail(c);
}

inline void ignore_output(j_common_ptr) {}

inline jpeg_error_mgr* set_up(error_handler& handler) {
  jpeg_error_mgr* out = jpeg_std_error(&handler.base);
  handler.base.error_exit = fail;
  handler.base.emit_message = on_message;
  handler.base.output_message = ignore_output;
  return out;
}

// True if `f` returned. A jump may leave `f`, so it must own nothing.
template <class F>
bool guarded(error_handler& handler, F&& f) {
  if (setjmp(handler.escape) != 0) return false;
  f();
  return true;
}

// Bounds the scans and the CPU time of a decompressor.
struct effort_limit {
  jpeg_progress_mgr base;  // first: libjpeg passes a pointer to it
  int max_scans;
  double cpu_deadline;
  int calls;

  // For the next image.
  void begin(const image_limits& limits) {
    max_scans = limits.max_scans;
    calls = 0;
    cpu_deadline = thread_cpu_seconds() + limits.max_cpu_seconds;
  }
  // Has the library call check() for each row of MCUs. Must outlive `c`.
  void watch(jpeg_decompress_struct& c) {
    base.progress_monitor = check;
    c.progress = &base;
  }

 private:
  static void check(j_common_ptr c) {
    auto* limit = reinterpret_cast<effort_limit*>(c->progress);
    constexpr int calls_between_looks = 64;
    const bool looks = ++limit->calls % calls_between_looks == 0;
    if (reinterpret_cast<j_decompress_ptr>(c)->input_scan_number > limit->max_scans) {
      give_up(c, "more than %d scans", limit->max_scans);
    }
    if (looks && thread_cpu_seconds() > limit->cpu_deadline) give_up(c, "it takes too long", 0);
  }
};

// Bytes of all coefficients of an image whose header was read, as the library holds them for
// several scans. Source: libjpeg-turbo, jdcoefct.c.
inline std::uint64_t coefficient_bytes(const jpeg_decompress_struct& c) {
  std::uint64_t blocks = 0;
  for (int i = 0; i < c.num_components; ++i) {
    const auto& component = c.comp_info[i];
    const auto rounded_up = [](JDIMENSION count, int factor) {
      const auto unit = static_cast<std::uint64_t>(factor);
      return (count + unit - 1) / unit * unit;
    };
    blocks += rounded_up(component.width_in_blocks, component.h_samp_factor) *
              rounded_up(component.height_in_blocks, component.v_samp_factor);
  }
  return blocks * DCTSIZE2 * sizeof(JCOEF);
}

// Returns the JPEG that `write` makes with the compressor passed to it, or nothing if the library
// gives up; `handler` then has the reason. Throws std::bad_alloc if the host has no memory. A jump
// may leave `write`, so it must own nothing.
template <class F>
std::optional<std::vector<std::byte>> compressed(error_handler& handler, F&& write) {
  jpeg_compress_struct c{};
  c.err = set_up(handler);
  unsigned char* file = nullptr;
  unsigned long size = 0;
  const bool ok = guarded(handler, [&] {
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, &file, &size);
    write(c);
    jpeg_finish_compress(&c);
  });
  std::optional<std::vector<std::byte>> out;
  if (ok) {
    const auto* begin = reinterpret_cast<const std::byte*>(file);
    out.emplace(begin, begin + size);
  }
  jpeg_destroy_compress(&c);
  std::free(file);
  if (handler.no_memory) throw std::bad_alloc();
  return out;
}

}  // namespace millrace::libjpeg
