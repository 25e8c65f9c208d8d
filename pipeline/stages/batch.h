#pragma once

#include "pipeline/pixels/image.h"
#include "pipeline/plan/plan.h"

namespace millrace {

// Options of batch().
struct batch_options {
  int size = 64;  // images, 1 to 2^20
  // Leaves out batches that are cut short, by an epoch's end or by an image of another size. Their
  // images count as dropped, and the first batch that a size cuts short is reported in a notice.
  bool drop_last = false;
  // Batches that the program keeps at once, 1 to 2^20: the budget must have room for them. Set it
  // if the program keeps more than two (to feed several devices, or to accumulate); next() waits
  // for memory while it keeps more than the budget has room for.
  int held = 2;
};

// Combines consecutive images of one size into one contiguous block of uint8, NHWC. An image of
// another size begins a new batch. Images that come straight from decode_jpeg() (also through
// on_error, slice, epochs_of, repeated and prefetch) were decoded into that block already, and are
// moved only after one that failed. After any other stage images are copied into the batch, since
// they may come in any order. Throws `failure` (usage) for options out of range. Examples:
// examples/epoch.cc, examples/training_loop.cc.
stage<image, host_batch> batch(const batch_options& options);

}  // namespace millrace
