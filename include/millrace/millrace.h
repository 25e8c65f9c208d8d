// All of the loader: the engine, sources, and stages. Training is in <millrace/train.h>.
#pragma once

#include "engine/memory.h"
#include "io/shard_spec.h"
#include "pipeline/batch.h"
#include "pipeline/decode.h"
#include "pipeline/engine.h"
#include "pipeline/fields.h"
#include "pipeline/group.h"
#include "pipeline/on_error.h"
#include "pipeline/prefetch.h"
#include "pipeline/sample_source.h"
#include "pipeline/shards.h"
#include "pipeline/shuffle.h"
#include "pipeline/stages.h"
#include "pipeline/untar.h"
#include "pipeline/wids/indexed_dataset.h"
#include "pipeline/wids/samplers.h"
