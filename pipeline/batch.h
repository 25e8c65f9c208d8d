#pragma once

#include "pipeline/plan.h"

namespace millrace {

struct batch_options {
  int size = 64;           // images
  bool drop_last = false;  // leave out what an epoch's end cuts short (counted as dropped)
};

// Puts consecutive images together: one contiguous block of uint8, NHWC. The images were decoded
// into that block already; they are moved only behind one that failed.
stage<image, host_batch> batch(const batch_options& options);

}  // namespace millrace
