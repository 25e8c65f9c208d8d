#pragma once

#include "pipeline/images/decode_options.h"
#include "pipeline/pixels/image.h"
#include "pipeline/plan/plan.h"

namespace millrace {

// Decodes each sample's image in the CPU pool, straight into its slot of the batch's block, and
// reads its label. Keeps the order. Crops, flips and augmentations are a function of (seed, epoch,
// position). Fails with bad_image, too_large, bad_label or missing_field, all skippable and about
// one sample. Images that were decoded with warnings are counted in the ledger (damaged). Made for
// JPEGs; also decodes the other formats of image_decoder. Throws `failure` (usage) as checked()
// does. Examples: examples/epoch.cc, docs/images.md.
stage<sample, image> decode_jpeg(const decode_options& options = {});

}  // namespace millrace
