#pragma once

// Only for translation units that include libjpeg.

#include "pipeline/codecs/jpeg_errors.h"

namespace millrace::libjpeg {

// Makes the library warn (JWRN_EXTRANEOUS_DATA) of all bytes between a run and its restart marker.
// By itself it does not report those that its bit buffer consumed together with the marker. Call
// once, for an object that was just created. Without jpegint.h, does nothing.
void watch_runs(jpeg_decompress_struct& c);

}  // namespace millrace::libjpeg
