#include "pipeline/codecs/jpeg_runs.h"

#if __has_include(<jpegint.h>)
extern "C" {
#include <jpegint.h>
}

namespace millrace::libjpeg {
namespace {

// The library's own function, the same for all objects.
using restart_reader = boolean (*)(j_decompress_ptr);
restart_reader reader_of_library(const jpeg_decompress_struct& created) {
  static const restart_reader reader = created.marker->read_restart_marker;
  return reader;
}

// Warns of discarded bytes before the marker. Source: libjpeg-turbo, jdhuff.c, process_restart(),
// which counts the bytes and calls this; jdmarker.c, next_marker(), which warns of them only if it
// runs.
boolean read_restart_marker(j_decompress_ptr c) {
  unsigned& left = c->marker->discarded_bytes;
  if (left > 0 && c->unread_marker != 0) {
    c->err->msg_code = JWRN_EXTRANEOUS_DATA;
    c->err->msg_parm.i[0] = static_cast<int>(left);
    c->err->msg_parm.i[1] = c->unread_marker;
    left = 0;
    c->err->emit_message(reinterpret_cast<j_common_ptr>(c), -1);
  }
  return reader_of_library(*c)(c);
}

}  // namespace

void watch_runs(jpeg_decompress_struct& c) {
  reader_of_library(c);
  c.marker->read_restart_marker = read_restart_marker;
}

}  // namespace millrace::libjpeg

#else

void millrace::libjpeg::watch_runs(jpeg_decompress_struct&) {}

#endif
