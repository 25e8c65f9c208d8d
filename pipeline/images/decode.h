#pragma once

#include "pipeline/images/decode_options.h"
#include "pipeline/images/image.h"
#include "pipeline/plan.h"

namespace millrace {

// Decodes each sample's image in the CPU pool, straight into its slot of the batch's block, and
// reads its label. Order is kept. Crops, flips and augmentations are a function of (seed, epoch,
// position). Errors are per sample: bad_image, too_large, bad_label, missing_field, all skippable.
// Images that were decoded with warnings are counted in the ledger (damaged). Made for JPEGs; also
// decodes the other formats of image_decoder.h.
stage<sample, image> decode_jpeg(const decode_options& options = {});

}  // namespace millrace
