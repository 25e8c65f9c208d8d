// Images: stages that decode samples and form batches, augmentation, mixing, a cache of decoded
// images, and decoders for functions of the program. Include it where a plan has images.
#pragma once

#include "pipeline/images/decoded_cache.h"
#include "pipeline/images/mixing.h"
#include "pipeline/images/sample_decoder.h"
#include "pipeline/pixels/image.h"
#include "pipeline/pixels/view.h"
#include "pipeline/stages/batch.h"
#include "pipeline/stages/decode.h"
