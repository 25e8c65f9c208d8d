#pragma once

// For the translation units that include libjpeg, and for no other.

#include "pipeline/images/jpeg_errors.h"

namespace millrace::libjpeg {

// Has the library warn (JWRN_EXTRANEOUS_DATA) of all bytes that stand behind a run and in front of
// its restart marker. Of those that its bit buffer has taken up with the marker it says nothing by
// itself. Once, for an object that was just created. Without jpegint.h it changes nothing.
void watch_runs(jpeg_decompress_struct& c);

}  // namespace millrace::libjpeg
