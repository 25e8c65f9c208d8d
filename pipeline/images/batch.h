#pragma once

#include "pipeline/images/image.h"
#include "pipeline/plan.h"

namespace millrace {

struct batch_options {
  int size = 64;  // images
  // Leave out batches that are cut short, by an epoch's end or by an image of another size (all are
  // counted as dropped, and the first one cut short by a size is told in a notice).
  bool drop_last = false;
  // Batches that the program keeps at once, 1 or more: the budget must have room for so many. A
  // program that keeps more (to feed several devices, or to accumulate) says so here; next() waits
  // for memory where more are kept than the budget has room for.
  int held = 2;
};

// Combines consecutive images of one size: one contiguous block of uint8, NHWC. An image of another
// size begins a new batch. Images that come straight from decode_jpeg (also through on_error,
// slice, epochs_of, repeated and prefetch) were decoded into that block already, and are moved only
// after one that failed. With any other stage between the two, images are copied into the batch,
// since they may come in any order.
stage<image, host_batch> batch(const batch_options& options);

}  // namespace millrace
