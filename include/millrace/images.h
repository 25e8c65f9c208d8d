// Images: stages that decode samples and form batches, augmentation, mixing, a cache of decoded
// images, and decoders for functions of the program. Include it where a plan has images.
#pragma once

#include "pipeline/images/batch.h"
#include "pipeline/images/decode.h"
#include "pipeline/images/decoded_cache.h"
#include "pipeline/images/image.h"
#include "pipeline/images/mixing.h"
#include "pipeline/images/sample_decoder.h"
#include "pipeline/images/view.h"
