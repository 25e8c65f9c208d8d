// Stages for items of any kind: they choose, change, mix and shuffle samples, call functions of the
// program, form groups, change the length of epochs, skip errors and read ahead. Include it where a
// plan has such stages.
#pragma once

#include "pipeline/stages/batched.h"
#include "pipeline/stages/buckets.h"
#include "pipeline/stages/collate.h"
#include "pipeline/stages/counting.h"
#include "pipeline/stages/join.h"
#include "pipeline/stages/map.h"
#include "pipeline/stages/mix.h"
#include "pipeline/stages/on_error.h"
#include "pipeline/stages/prefetch.h"
#include "pipeline/stages/sample_stage.h"
#include "pipeline/stages/select.h"
#include "pipeline/stages/shuffle.h"
#include "pipeline/stages/window_shuffle.h"
